"""The sentence patterns of the embedded corpus; each docstring gives an example."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from transformer_jax.data.sources.grammar.clauses import (
    BE,
    NOTHING,
    THE,
    WE,
    Clause,
    I,
    NounPhrase,
    Phrase,
    into,
    linked,
    pronoun_for,
    state,
)
from transformer_jax.data.sources.grammar.draw import SIMPLE_TENSES, Draw, compatible, possessive
from transformer_jax.data.sources.grammar.lexicon import WORDS, Draft, number_words

#: Draws a sentence.
Pattern = Callable[[Draw], Draft]

#: Groups of things that have a price: everything but the letter.
_GOODS = ("wares", "furniture", "devices")
_COLOURS = ("red", "black", "white", "green")
_BECAUSE, _ALTHOUGH, _IF = ("because ", "weil "), ("although ", "obwohl "), ("if ", "wenn ")
_BEFORE_CLAUSE = (" ", ", ")


def _simple(draw: Draw) -> Draft:
    """The woman picks up the letter on Monday. / Yesterday the woman picked up the letter."""
    tense = draw.tense()
    clause = draw.deed_or_meeting(draw.subject(), tense, 0.65)
    adverb = draw.time(tense, 0.7)
    if adverb[0] and draw.chance(0.5):
        return linked(adverb, " ", clause.words("inverted"))
    return replace(clause, adverb=adverb).words()


def _negation(draw: Draw) -> Draft:
    """The boy does not find the key. / Der Junge findet den Schlüssel nicht."""
    tense = draw.tense("present", "past", "future", "can")
    clause = draw.deed(draw.subject(), tense, definite=True)
    return replace(clause, adverb=draw.time(tense, 0.3), negated=True).words()


def _question(draw: Draw) -> Draft:
    """Why did Anna turn off the radio? / Warum hat Anna das Radio ausgeschaltet?"""
    tense = draw.tense()
    clause = draw.deed_or_meeting(draw.subject(), tense, 0.6)
    why = ("why ", "warum ") if draw.chance(0.5) else NOTHING
    return linked(why, clause.words("question"), "?")


def _giving(draw: Draw) -> Draft:
    """The king gives the boy an old book. / Der König gibt dem Jungen ein altes Buch."""
    subject, tense = draw.subject(), draw.tense()
    verb = draw.verb("giving")
    thing = draw.thing(WORDS.nouns_of(("letters", "wares")), subject)
    recipient = draw.person(but_not=subject)
    return Clause(subject, verb, tense, thing, recipient, draw.time(tense, 0.3)).words()


def _staying(draw: Draw) -> Draft:
    """Today our aunt will arrive late. / Heute wird unsere Tante spät ankommen."""
    tense = draw.tense(*SIMPLE_TENSES)
    clause = draw.stay(draw.subject(), tense)
    adverb = draw.one(WORDS.times[tense])
    if draw.chance(0.6):
        return linked(adverb, " ", clause.words("inverted"))
    if clause.complement[0] and draw.chance(0.5):
        clause = replace(clause, adverb=adverb)
    return clause.words()


def _contrast(draw: Draw) -> Draft:
    """The table is old, but it is beautiful. / Der Tisch ist alt, aber er ist schön."""
    kind = draw.one(("thing", "thing", "thing", "animal", "person"))
    if kind == "thing":
        noun = draw.one(WORDS.nouns_of((*_GOODS, "opened")))
        determiner = draw.one((I, WE)).possessive if draw.chance(0.5) else THE
        subject = NounPhrase(noun, determiner, draw.one(("", *_COLOURS)))
        states: Sequence[str] = WORDS.states["thing"]
    elif kind == "animal":
        subject, states = draw.animal(), (*WORDS.states["person"], "clever", "friendly")
    else:
        subject, states = draw.person(), (*WORDS.states["person"], "rich")
    first = draw.adjective(states, subject.adjective)
    second = draw.adjective(states, subject.adjective, first)
    tense = draw.tense("present", "past")
    tense_after = tense if draw.chance(0.7) else "present"
    pronoun = pronoun_for(subject, thing=kind != "person")
    closing = state(pronoun, second, tense_after, negated=draw.chance(0.2))
    return linked(state(subject, first, tense).words(), (", but ", ", aber "), closing.words())


def _reason_of_thing(draw: Draw) -> Draft:
    """Paul buys the lamp because it is cheap. / Paul kauft die Lampe, weil sie billig ist."""
    name = draw.one(list(WORDS.reasons))
    verb = WORDS.verbs["thing"][name]
    subject, tense = draw.subject(), draw.tense("present", "past")
    thing = draw.thing(WORDS.nouns_of(verb.things), subject, definite=True)
    because = draw.chance(0.6)
    reason = draw.one(WORDS.reasons[name][0 if because else 1])
    if not compatible(reason, thing.adjective):
        thing = replace(thing, adjective="")
    closing = state(pronoun_for(thing, thing=True), reason, tense)
    main = Clause(subject, verb, tense, thing)
    return _subordinate(main, _BECAUSE if because else _ALTHOUGH, closing)


def _reason_of_person(draw: Draw) -> Draft:
    """I help the man because he is ill. / Ich helfe dem Mann, weil er krank ist."""
    subject, tense = draw.subject(), draw.tense("present", "past")
    verb = draw.verb("person")
    animal = verb.english[0] not in ("call", "invite", "thank", "visit") and draw.chance(0.4)
    whom = draw.animal(but_not=subject) if animal else draw.person(but_not=subject)
    reason = state(pronoun_for(whom, thing=animal), draw.one(WORDS.states["person"]), tense)
    conjunction = _BECAUSE if draw.chance(0.6) else _ALTHOUGH
    return _subordinate(Clause(subject, verb, tense, whom), conjunction, reason)


def _subordinate(main: Clause, conjunction: Draft, clause: Clause) -> Draft:
    return linked(main.words(), _BEFORE_CLAUSE, conjunction, clause.words("final"))


def _fronted(draw: Draw) -> Draft:
    """Because the man is tired, he sleeps. / Weil der Mann müde ist, schläft er."""
    conjunction = draw.one((_BECAUSE, _ALTHOUGH, _IF))
    person = draw.person()
    now = "present" if conjunction is _IF else draw.tense("present", "past")
    reason = state(person, draw.one(WORDS.states["person"]), now)
    tense = draw.tense("present", "future", "can", "must") if conjunction is _IF else now
    who = pronoun_for(person, thing=False) if draw.chance(0.7) else draw.one((I, WE))
    deed = draw.stay(who, tense) if draw.chance(0.5) else draw.deed(who, tense, definite=True)
    while deed.verb is WORDS.verbs["time"]["arrive"]:  # nobody arrives because he is happy
        deed = draw.stay(who, tense)
    return linked(conjunction, reason.words("final"), ", ", deed.words("inverted"))


def _condition(draw: Draw) -> Draft:
    """If the box is heavy, we will pick it up. / Wenn die Kiste schwer ist, werden wir sie ..."""
    name = draw.one(list(WORDS.reasons))
    verb = WORDS.verbs["thing"][name]
    reason = draw.one(WORDS.reasons[name][0])
    thing = NounPhrase(draw.one(WORDS.nouns_of(verb.things)))
    tense = draw.tense("present", "future", "can", "must", "want")
    who = draw.one((I, WE)) if draw.chance(0.4) else draw.person()
    deed = Clause(who, verb, tense, pronoun_for(thing, thing=True))
    return linked(_IF, state(thing, reason).words("final"), ", ", deed.words("inverted"))


def _sequence(draw: Draw) -> Draft:
    """Maria finds the hat and throws it away. / Maria findet den Hut und wirft ihn weg."""
    subject, tense = draw.subject(), draw.tense("present", "past", "future")
    second = WORDS.verbs["thing"][draw.one(list(WORDS.reasons))]
    find, look_for, buy = (WORDS.verbs["thing"][name] for name in ("find", "look for", "buy"))
    found = WORDS.nouns_of(find.things)
    thing = draw.thing([n for n in WORDS.nouns_of(second.things) if n in found], subject)
    firsts = [
        verb
        for verb in (find, look_for, buy)
        if verb is not second and thing.noun in WORDS.nouns_of(verb.things)
    ]
    opening = Clause(subject, draw.one(firsts), tense, thing)
    closing = Clause(subject, second, tense, pronoun_for(thing, thing=True))
    return linked(opening.words(), (" and ", " und "), closing.words("joined"))


def _report(draw: Draw) -> Draft:
    """I know that the child has ... / Ich weiß, dass das Kind ... hat."""
    subject = draw.subject()
    verb, conjunction = draw.one(("know", "say", "hope", "believe")), ("that ", "dass ")
    negated = False
    if draw.chance(0.35):
        negated = draw.chance(0.5)
        verb, conjunction = "know" if negated else "ask", ("whether ", "ob ")
    who: Phrase = draw.person(but_not=subject)
    if isinstance(subject, NounPhrase) and possessive(subject) and draw.chance(0.25):
        who = pronoun_for(subject, thing=False)
    main = Clause(subject, WORDS.verbs["frame"][verb], negated=negated)
    return _subordinate(main, conjunction, draw.clause(who))


def _relative_object(draw: Draw) -> Draft:
    """The hat that Anna found is red. / Der Hut, den Anna gefunden hat, ist rot."""
    verb = draw.verb("thing")
    thing = NounPhrase(draw.one(WORDS.nouns_of(verb.things)))
    tense = draw.tense("present", "past", "past", "future", "want")
    adverb = draw.time(tense, 0.3)
    clause = Clause(draw.subject(), verb, tense, adverb=adverb)
    that = ("that ", WORDS.ending("der", thing.gender, "accusative") + " ")
    relative = linked(that, clause.words("final"))
    return _about(thing, relative, draw.one((*WORDS.states["thing"], *_COLOURS)))


def _relative_subject(draw: Draw) -> Draft:
    """We thank the man who helped Anna. / Wir danken dem Mann, der Anna geholfen hat."""
    noun = draw.one(WORDS.nouns["person"])
    whom = NounPhrase(noun, THE, draw.one(("", "", *WORDS.attributes["person"][:2])))
    clause = draw.clause(NounPhrase(noun))
    while clause.verb is BE:
        clause = draw.clause(NounPhrase(noun))
    who = ("who ", WORDS.ending("der", noun.gender, "nominative") + " ")
    relative = linked(who, clause.words("relative"))
    if draw.chance(0.5):
        return _about(whom, relative, draw.one(WORDS.states["person"]))
    verb = draw.verb("person")
    main = Clause(draw.one((I, WE)), verb, draw.tense("present", "past"), whom)
    return linked(main.words(), _BEFORE_CLAUSE, relative)


def _about(subject: NounPhrase, relative: Draft, adjective: str) -> Draft:
    """The subject, about which the relative clause says something, is as the adjective says."""
    words = subject.english("nominative"), subject.german("nominative")
    predicate = (f" is {adjective}", f", ist {WORDS.adjectives[adjective][0]}")
    return linked(words, _BEFORE_CLAUSE, relative, predicate)


def _infinitive(draw: Draw) -> Draft:
    """He tries to open the door. / Er versucht, die Tür aufzumachen."""
    subject = draw.subject()
    infinitive = draw.deed_or_meeting(subject, "present", 0.7).words("infinitive")
    if draw.chance(0.6):
        verb = WORDS.verbs["frame"][draw.one(("try", "promise"))]
        report = Clause(subject, verb, draw.tense("present", "past"))
        return linked(report.words(), (" to ", ", "), infinitive)
    tense = draw.tense("present", "past", "must")
    way = Clause(subject, draw.verb("motion"), tense, complement=into(draw.place()))
    return linked(way.words(), (" in order to ", ", um "), infinitive)


def _number(draw: Draw) -> Draft:
    """The lamp costs forty-two euros. / Die Lampe kostet zweiundvierzig Euro."""
    words = number_words(draw.one(range(2 if draw.chance(0.4) else 21, 100)))
    kind = draw.one(("price", "age", "count", "count", "many", "delay"))
    if kind == "price":
        ware = draw.thing(WORDS.nouns_of(_GOODS), draw.one((I, WE)), definite=True)
        costs = Clause(ware, WORDS.verbs["frame"]["cost"])
        return linked(costs.words(), " ", words, (" euros", " Euro"))
    if kind == "age":
        subjects: tuple[Phrase, ...] = (I, draw.person(), draw.person())
        age = linked(words, (" years old", " Jahre alt"))
        return Clause(draw.one(subjects), BE, complement=age).words()
    if kind == "delay":
        delay = linked("in ", words, (" minutes", " Minuten"))
        verb = WORDS.verbs["time"][draw.one(("arrive", "come back", "get up"))]
        subject, tense = draw.subject(), draw.tense("present", "future")
        return Clause(subject, verb, tense, adverb=delay).words()
    if kind == "many":
        many = NounPhrase(draw.one(WORDS.nouns["person"][:4]), words, several=True)
        return draw.stay(many, draw.tense(*SIMPLE_TENSES)).words()
    subject, tense = draw.subject(), draw.tense()
    adjective = draw.maybe(0.4, WORDS.attributes["thing"])
    things = NounPhrase(draw.one(WORDS.nouns["wares"]), words, adjective, several=True)
    name = draw.one(("buy", "sell", "find", "pick up", "bring along", "throw away"))
    return Clause(subject, WORDS.verbs["thing"][name], tense, things).words()


def _short_doing(draw: Draw) -> Draft:
    """The dog sleeps. / Der Hund schläft."""
    return short(draw, Clause(draw.anyone(), draw.verb("place", "time", "motion"), draw.tense()))


def _short_deed(draw: Draw) -> Draft:
    """Anna must find books. / Anna muss Bücher finden."""
    verb = draw.verb("thing")
    thing = draw.any_article(WORDS.nouns_of(verb.things), WORDS.attributes["thing"])
    return short(draw, Clause(draw.anyone(), verb, draw.tense(), thing))


def _short_meeting(draw: Draw) -> Draft:
    """A child sees the dogs. / Ein Kind sieht die Hunde."""
    subject = draw.anyone()
    verb = draw.verb("person")
    return short(draw, Clause(subject, verb, draw.tense(), draw.anyone(but_not=subject)))


def _short_state(draw: Draw) -> Draft:
    """We are hungry. / Wir sind hungrig."""
    tense, negated = draw.tense("present", "past"), draw.chance(0.2)
    subject = draw.anyone()
    return short(draw, state(subject, draw.one(WORDS.states["person"]), tense, negated=negated))


def _short_state_of_thing(draw: Draw) -> Draft:
    """The books were expensive. / Die Bücher waren teuer."""
    thing = draw.any_article(WORDS.nouns_of(("letters", "wares", "furniture", "opened", "devices")))
    tense, negated = draw.tense("present", "past"), draw.chance(0.2)
    return short(draw, state(thing, draw.one(WORDS.states["thing"]), tense, negated=negated))


def short(draw: Draw, clause: Clause) -> Draft:
    """The clause, in some sentences as a question."""
    if draw.chance(0.3) and not clause.negated:
        return linked(clause.words("question"), "?")
    return clause.words()


#: Sentences of a few words, with every word in every number and with every article.
SHORT_PATTERNS: tuple[Pattern, ...] = (
    _short_doing,
    _short_deed,
    _short_meeting,
    _short_state,
    _short_state_of_thing,
)

_WEIGHTS: dict[Pattern, int] = {
    _simple: 2,
    _negation: 1,
    _question: 1,
    _giving: 1,
    _staying: 1,
    _contrast: 1,
    _reason_of_thing: 2,
    _reason_of_person: 1,
    _fronted: 1,
    _condition: 1,
    _sequence: 1,
    _report: 2,
    _relative_object: 1,
    _relative_subject: 1,
    _infinitive: 1,
    _number: 3,
}
#: One is drawn for each sentence; a pattern that is in it twice is drawn twice as often.
PATTERNS = tuple(pattern for pattern, weight in _WEIGHTS.items() for _ in range(weight))
