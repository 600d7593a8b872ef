"""The sentence patterns of the embedded corpus; each docstring gives an example."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from transformer_jax.data.sources.grammar.clauses import (
    WE,
    Clause,
    I,
    Name,
    NounPhrase,
    Phrase,
    PresentOrPast,
    State,
    both,
    into,
    linked,
    pronoun_for,
)
from transformer_jax.data.sources.grammar.draw import (
    PRESENT_OR_PAST,
    Draw,
    compatible,
    possessive,
)
from transformer_jax.data.sources.grammar.lexicon import (
    WORDS,
    Draft,
    Tense,
    definite_article,
    number_words,
)

#: Draws a sentence.
Pattern = Callable[[Draw], Draft]

#: Things that have a price: everything but the letter.
_GOODS = WORDS.things_of(("wares", "furniture", "devices"))
_COLOURS = ("red", "black", "white", "green")
_SPACE = (" ", " ")
_COMMA = (", ", ", ")
_BECAUSE, _ALTHOUGH = ("because ", "weil "), ("although ", "obwohl ")


def _simple(draw: Draw) -> Draft:
    """The woman picks up the letter on Monday. / Yesterday the woman picked up the letter."""
    tense = draw.tense()
    subject = draw.subject()
    clause = draw.deed(subject, tense) if draw.chance(0.65) else draw.meeting(subject, tense)
    adverb = draw.time(tense, 0.7)
    if adverb[0] and draw.chance(0.5):
        return linked(adverb, _SPACE, both(clause, "inverted"))
    return both(replace(clause, adverb=adverb))


def _negation(draw: Draw) -> Draft:
    """The boy does not find the key. / Der Junge findet den Schlüssel nicht."""
    tense = draw.tense_of("present", "past", "future", "can")
    clause = draw.deed(draw.subject(), tense, definite=True)
    return both(replace(clause, adverb=draw.time(tense, 0.3), negated=True))


def _question(draw: Draw) -> Draft:
    """Why did Anna turn off the radio? / Warum hat Anna das Radio ausgeschaltet?"""
    tense = draw.tense()
    subject = draw.subject()
    clause = draw.deed(subject, tense) if draw.chance(0.6) else draw.meeting(subject, tense)
    why = ("why ", "warum ") if draw.chance(0.5) else ("", "")
    return linked(why, (clause.english_question(), clause.german("inverted")), ("?", "?"))


def _giving(draw: Draw) -> Draft:
    """The king gives the boy an old book. / Der König gibt dem Jungen ein altes Buch."""
    subject, tense = draw.subject(), draw.tense()
    verb = draw.verb(WORDS.giving_verbs)
    thing = draw.thing(WORDS.things_of(("letters", "wares")), subject)
    recipient = draw.person(but_not=subject)
    return both(Clause(subject, verb, tense, thing, recipient, draw.time(tense, 0.3)))


def _staying(draw: Draw) -> Draft:
    """Today our aunt will arrive late. / Heute wird unsere Tante spät ankommen."""
    tense = draw.tense(simple=True)
    clause = draw.stay(draw.subject(), tense)
    adverb = draw.one(WORDS.times[tense])
    if draw.chance(0.6):
        return linked(adverb, _SPACE, both(clause, "inverted"))
    if clause.place[0] and draw.chance(0.5):
        clause = replace(clause, adverb=adverb)
    return both(clause)


def _contrast(draw: Draw) -> Draft:
    """The table is old, but it is beautiful. / Der Tisch ist alt, aber er ist schön."""
    kind = draw.one(("thing", "thing", "thing", "animal", "person"))
    if kind == "thing":
        subject: NounPhrase | Name = NounPhrase(
            draw.one(_GOODS + WORDS.things_of(["opened"])),
            draw.one((I, WE)).possessive if draw.chance(0.5) else "the",
            draw.one(("", *_COLOURS)),
        )
        states: Sequence[str] = WORDS.thing_states
    elif kind == "animal":
        subject, states = draw.animal(), (*WORDS.person_states, "clever", "friendly")
    else:
        subject, states = draw.person(), (*WORDS.person_states, "rich")
    attribute = getattr(subject, "adjective", "")
    first = draw.state(states, attribute)
    second = draw.state(states, attribute, first)
    tense = draw.one(PRESENT_OR_PAST)
    tense_after = tense if draw.chance(0.7) else "present"
    opening = State.of(subject, first, tense)
    pronoun = pronoun_for(subject, thing=kind != "person")
    closing = State.of(pronoun, second, tense_after, draw.chance(0.2))
    return linked(both(opening), (", but ", ", aber "), both(closing))


def _reason_of_thing(draw: Draw) -> Draft:
    """Paul buys the lamp because it is cheap. / Paul kauft die Lampe, weil sie billig ist."""
    name = draw.one(list(WORDS.reasons))
    subject, tense = draw.subject(), draw.one(PRESENT_OR_PAST)
    thing = draw.thing(WORDS.things_of_verb(name), subject, definite=True)
    because = draw.chance(0.6)
    state = draw.one(WORDS.reasons[name][0 if because else 1])
    if not compatible(state, thing.adjective):
        thing = NounPhrase(thing.noun, thing.determiner)
    clause = Clause(subject, WORDS.thing_verbs[name], tense, thing)
    reason = State.of(pronoun_for(thing, thing=True), state, tense)
    return _subordinate(clause, _BECAUSE if because else _ALTHOUGH, reason)


def _reason_of_person(draw: Draw) -> Draft:
    """I help the man because he is ill. / Ich helfe dem Mann, weil er krank ist."""
    subject, tense = draw.subject(), draw.one(PRESENT_OR_PAST)
    verb = draw.verb(WORDS.person_verbs)
    animal = verb.english[0] not in ("call", "invite", "thank", "visit") and draw.chance(0.4)
    whom = draw.animal(but_not=subject) if animal else draw.person(but_not=subject)
    clause = Clause(subject, verb, tense, whom)
    pronoun = pronoun_for(whom, thing=animal)
    reason = State.of(pronoun, draw.state(WORDS.person_states), tense)
    return _subordinate(clause, _BECAUSE if draw.chance(0.6) else _ALTHOUGH, reason)


def _subordinate(main: Clause, conjunction: Draft, clause: Clause | State) -> Draft:
    return linked(both(main), (" ", ", "), conjunction, both(clause, "final"))


def _fronted(draw: Draw) -> Draft:
    """Because the man is tired, he sleeps. / Weil der Mann müde ist, schläft er."""
    condition = ("if ", "wenn ")
    conjunction = draw.one((_BECAUSE, _ALTHOUGH, condition))
    person = draw.person()
    conditional = conjunction is condition
    now: PresentOrPast = "present" if conditional else draw.one(PRESENT_OR_PAST)
    reason = State.of(person, draw.state(WORDS.person_states), now)
    tense: Tense = draw.tense_of("present", "future", "can", "must") if conditional else now
    who: Phrase = pronoun_for(person, thing=False) if draw.chance(0.7) else draw.one((I, WE))
    deed = draw.stay(who, tense) if draw.chance(0.5) else draw.deed(who, tense, definite=True)
    while deed.verb is WORDS.time_verbs["arrive"]:  # nobody arrives because he is happy
        deed = draw.stay(who, tense)
    return linked(conjunction, both(reason, "final"), _COMMA, both(deed, "inverted"))


def _condition(draw: Draw) -> Draft:
    """If the box is heavy, we will pick it up. / Wenn die Kiste schwer ist, werden wir sie ..."""
    name = draw.one(list(WORDS.reasons))
    state = draw.one(WORDS.reasons[name][0])
    thing = NounPhrase(draw.one(WORDS.things_of_verb(name)))
    tense = draw.tense_of("present", "future", "can", "must", "want")
    who = draw.one((I, WE)) if draw.chance(0.4) else draw.person()
    deed = Clause(who, WORDS.thing_verbs[name], tense, pronoun_for(thing, thing=True))
    condition = both(State.of(thing, state), "final")
    return linked(("if ", "wenn "), condition, _COMMA, both(deed, "inverted"))


def _sequence(draw: Draw) -> Draft:
    """Maria finds the hat and throws it away. / Maria findet den Hut und wirft ihn weg."""
    subject, tense = draw.subject(), draw.tense_of("present", "past", "future")
    second = draw.one(list(WORDS.reasons))
    found = WORDS.things_of_verb("find")
    thing = draw.thing([n for n in WORDS.things_of_verb(second) if n in found], subject)
    firsts = [
        name
        for name in ("find", "look for", "buy")
        if name != second and thing.noun in WORDS.things_of_verb(name)
    ]
    opening = Clause(subject, WORDS.thing_verbs[draw.one(firsts)], tense, thing)
    pronoun = pronoun_for(thing, thing=True)
    closing = Clause(subject, WORDS.thing_verbs[second], tense, pronoun)
    joined = closing.english(joined=True), closing.german(joined=True)
    return linked(both(opening), (" and ", " und "), joined)


def _report(draw: Draw) -> Draft:
    """I know that the child has ... / Ich weiß, dass das Kind ... hat."""
    subject = draw.subject()
    verb = WORDS.frame_verbs[draw.one(("know", "say", "hope", "believe"))]
    conjunction = ("that ", "dass ")
    negated = False
    if draw.chance(0.35):
        negated = draw.chance(0.5)
        verb = WORDS.frame_verbs["know" if negated else "ask"]
        conjunction = ("whether ", "ob ")
    who: Phrase = draw.person(but_not=subject)
    if isinstance(subject, (Name, NounPhrase)) and possessive(subject) and draw.chance(0.25):
        who = pronoun_for(subject, thing=False)
    clause = draw.clause(who)
    return _subordinate(Clause(subject, verb, negated=negated), conjunction, clause)


def _relative_object(draw: Draw) -> Draft:
    """The hat that Anna found is red. / Der Hut, den Anna gefunden hat, ist rot."""
    name = draw.one(list(WORDS.thing_verbs))
    thing = NounPhrase(draw.one(WORDS.things_of_verb(name)))
    tense = draw.tense_of("present", "past", "past", "future", "want")
    adverb = draw.time(tense, 0.3)
    clause = Clause(draw.subject(), WORDS.thing_verbs[name], tense, adverb=adverb)
    state = draw.state((*WORDS.thing_states, *_COLOURS))
    relative = ("that ", definite_article(thing.gender, "accusative") + " ")
    return _about(thing, linked(relative, both(clause, "final")), state)


def _relative_subject(draw: Draw) -> Draft:
    """We thank the man who helped Anna. / Wir danken dem Mann, der Anna geholfen hat."""
    noun = draw.one(WORDS.persons)
    whom = NounPhrase(noun, "the", draw.one(("", "", *WORDS.person_attributes[:2])))
    clause = draw.clause(NounPhrase(noun))
    while isinstance(clause, State):
        clause = draw.clause(NounPhrase(noun))
    relative = (
        f"who {clause.english(without_subject=True)}",
        f"{definite_article(noun.gender, 'nominative')} "
        f"{clause.german('final', without_subject=True)}",
    )
    if draw.chance(0.5):
        return _about(whom, relative, draw.state(WORDS.person_states))
    verb = draw.verb(WORDS.person_verbs)
    main = Clause(draw.one((I, WE)), verb, draw.one(PRESENT_OR_PAST), whom)
    return linked(both(main), (" ", ", "), relative)


def _about(subject: NounPhrase, relative: Draft, state: str) -> Draft:
    """The subject, about which the relative clause says something, is as `state` says."""
    words = subject.english("nominative"), subject.german("nominative")
    predicate = (f" is {state}", f", ist {WORDS.adjectives[state][0]}")
    return linked(words, (" ", ", "), relative, predicate)


def _infinitive(draw: Draw) -> Draft:
    """He tries to open the door. / Er versucht, die Tür aufzumachen."""
    subject = draw.subject()
    deed = draw.deed(subject, "present") if draw.chance(0.7) else draw.meeting(subject, "present")
    infinitive = deed.english_infinitive(), deed.german_infinitive()
    if draw.chance(0.6):
        verb = WORDS.frame_verbs[draw.one(("try", "promise"))]
        report = Clause(subject, verb, draw.one(PRESENT_OR_PAST))
        return linked(both(report), (" to ", ", "), infinitive)
    tense = draw.tense_of("present", "past", "must")
    way = Clause(subject, draw.verb(WORDS.motion_verbs), tense, place=into(draw.place()))
    return linked(both(way), (" in order to ", ", um "), infinitive)


def _number(draw: Draw) -> Draft:
    """The lamp costs forty-two euros. / Die Lampe kostet zweiundvierzig Euro."""
    number = draw.number(2, 99) if draw.chance(0.4) else draw.number(21, 99)
    words = number_words(number)
    kind = draw.one(("price", "age", "count", "count", "many", "delay"))
    if kind == "price":
        ware = draw.thing(_GOODS, draw.one((I, WE)), definite=True)
        costs = Clause(ware, WORDS.frame_verbs["cost"])
        return linked(both(costs), _SPACE, words, (" euros", " Euro"))
    if kind == "age":
        subject: Phrase = draw.one((I, draw.person(), draw.person()))
        return both(State(subject, linked(words, (" years old", " Jahre alt"))))
    if kind == "delay":
        delay = linked(("in ", "in "), words, (" minutes", " Minuten"))
        verb = WORDS.time_verbs[draw.one(("arrive", "come back", "get up"))]
        subject, tense = draw.subject(), draw.tense_of("present", "future")
        return both(Clause(subject, verb, tense, adverb=delay))
    if kind == "many":
        many = NounPhrase(draw.one(WORDS.persons[:4]), number=number)
        return both(draw.stay(many, draw.tense(simple=True)))
    subject, tense = draw.subject(), draw.tense()
    adjective = draw.maybe(0.4, WORDS.thing_attributes)
    things = NounPhrase(draw.one(WORDS.things["wares"]), "the", adjective, number)
    name = draw.one(("buy", "sell", "find", "pick up", "bring along", "throw away"))
    return both(Clause(subject, WORDS.thing_verbs[name], tense, things))


def _short_doing(draw: Draw) -> Draft:
    """The dog sleeps. / Der Hund schläft."""
    verbs = WORDS.place_verbs | WORDS.time_verbs | WORDS.motion_verbs
    return _short(draw, Clause(draw.anyone(), draw.verb(verbs), draw.tense()))


def _short_deed(draw: Draw) -> Draft:
    """Anna must find books. / Anna muss Bücher finden."""
    name = draw.one(list(WORDS.thing_verbs))
    thing = draw.any_article(WORDS.things_of_verb(name), WORDS.thing_attributes)
    return _short(draw, Clause(draw.anyone(), WORDS.thing_verbs[name], draw.tense(), thing))


def _short_meeting(draw: Draw) -> Draft:
    """A child sees the dogs. / Ein Kind sieht die Hunde."""
    subject = draw.anyone()
    verb = draw.verb(WORDS.person_verbs)
    return _short(draw, Clause(subject, verb, draw.tense(), draw.anyone(but_not=subject)))


def _short_state(draw: Draw) -> Draft:
    """We are hungry. / Wir sind hungrig."""
    tense, negated = draw.one(PRESENT_OR_PAST), draw.chance(0.2)
    return _short(draw, State.of(draw.anyone(), draw.state(WORDS.person_states), tense, negated))


def _short_state_of_thing(draw: Draw) -> Draft:
    """The books were expensive. / Die Bücher waren teuer."""
    nouns = WORDS.things_of(("letters", "wares", "furniture", "opened", "devices"))
    thing = draw.any_article(nouns, ())
    tense, negated = draw.one(PRESENT_OR_PAST), draw.chance(0.2)
    return _short(draw, State.of(thing, draw.state(WORDS.thing_states), tense, negated))


def _short(draw: Draw, clause: Clause | State) -> Draft:
    """The clause, in some sentences as a question."""
    if draw.chance(0.3) and not getattr(clause, "negated", False):
        return clause.english_question() + "?", clause.german("inverted") + "?"
    return both(clause)


#: Sentences of a few words, with every word in every number and with every article.
SHORT_PATTERNS: tuple[Pattern, ...] = (
    _short_doing,
    _short_deed,
    _short_meeting,
    _short_state,
    _short_state_of_thing,
)

#: One is drawn for each sentence; a pattern that is listed twice is drawn twice as often.
PATTERNS: tuple[Pattern, ...] = (
    _simple,
    _simple,
    _negation,
    _question,
    _giving,
    _staying,
    _contrast,
    _reason_of_thing,
    _reason_of_thing,
    _reason_of_person,
    _fronted,
    _condition,
    _sequence,
    _report,
    _report,
    _relative_object,
    _relative_subject,
    _infinitive,
    _number,
    _number,
    _number,
)
