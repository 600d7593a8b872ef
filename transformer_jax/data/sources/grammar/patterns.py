"""The sentence patterns of the embedded corpus; each docstring gives an example."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from transformer_jax.data.sources.grammar import lexicon
from transformer_jax.data.sources.grammar.clauses import (
    WE,
    Clause,
    I,
    Name,
    NounPhrase,
    Phrase,
    PresentOrPast,
    State,
    Tense,
    into,
    pronoun_for,
)
from transformer_jax.data.sources.grammar.draw import (
    GOODS,
    PRESENT_OR_PAST,
    REASONS,
    THINGS_OF_VERB,
    TIMES,
    WARES,
    Draft,
    Draw,
    compatible,
    possessive,
)


def _simple(draw: Draw) -> Draft:
    """The woman picks up the letter on Monday. / Yesterday the woman picked up the letter."""
    tense = draw.tense()
    subject = draw.subject()
    clause = draw.deed(subject, tense) if draw.chance(0.65) else draw.meeting(subject, tense)
    adverb = draw.time(tense, 0.7)
    if adverb[0] and draw.chance(0.5):
        return f"{adverb[0]} {clause.english()}", f"{adverb[1]} {clause.german('inverted')}"
    clause = replace(clause, adverb=adverb)
    return clause.english(), clause.german()


def _negation(draw: Draw) -> Draft:
    """The boy does not find the key. / Der Junge findet den Schlüssel nicht."""
    tense = draw.tense_of("present", "past", "future", "can")
    clause = draw.deed(draw.subject(), tense, definite=True)
    clause = replace(clause, adverb=draw.time(tense, 0.3), negated=True)
    return clause.english(), clause.german()


def _question(draw: Draw) -> Draft:
    """Why did Anna turn off the radio? / Warum hat Anna das Radio ausgeschaltet?"""
    tense = draw.tense()
    subject = draw.subject()
    clause = draw.deed(subject, tense) if draw.chance(0.6) else draw.meeting(subject, tense)
    why = ("why ", "warum ") if draw.chance(0.5) else ("", "")
    return f"{why[0]}{clause.english_question()}?", f"{why[1]}{clause.german('inverted')}?"


def _giving(draw: Draw) -> Draft:
    """The king gives the boy an old book. / Der König gibt dem Jungen ein altes Buch."""
    subject, tense = draw.subject(), draw.tense()
    verb = draw.one(list(lexicon.GIVING_VERBS.values()))
    thing = draw.thing(lexicon.CARRIED, subject)
    recipient = draw.person(but_not=subject)
    adverb = draw.time(tense, 0.3)
    clause = Clause(subject, verb, tense, thing, recipient, adverb)
    return clause.english(), clause.german()


def _staying(draw: Draw) -> Draft:
    """Today our aunt will arrive late. / Heute wird unsere Tante spät ankommen."""
    tense = draw.tense(simple=True)
    clause = draw.stay(draw.subject(), tense)
    adverb = draw.one(TIMES[tense])
    if draw.chance(0.6):
        return f"{adverb[0]} {clause.english()}", f"{adverb[1]} {clause.german('inverted')}"
    if clause.place[0] and draw.chance(0.5):
        clause = replace(clause, adverb=adverb)
    return clause.english(), clause.german()


def _contrast(draw: Draw) -> Draft:
    """The table is old, but it is beautiful. / Der Tisch ist alt, aber er ist schön."""
    kind = draw.one(("thing", "thing", "thing", "animal", "person"))
    if kind == "thing":
        subject: NounPhrase | Name = NounPhrase(
            draw.one(GOODS + lexicon.OPENED),
            draw.one((I, WE)).possessive if draw.chance(0.5) else "the",
            draw.one(("", "red", "black", "white", "green")),
        )
        states: Sequence[str] = lexicon.THING_STATES
    elif kind == "animal":
        subject, states = draw.animal(), (*lexicon.PERSON_STATES, "clever", "friendly")
    else:
        subject, states = draw.person(), (*lexicon.PERSON_STATES, "rich")
    attribute = getattr(subject, "adjective", "")
    first = draw.state(states, attribute)
    second = draw.state(states, attribute, first)
    tense = draw.one(PRESENT_OR_PAST)
    tense_after = tense if draw.chance(0.7) else PRESENT_OR_PAST[0]
    opening = State.of(subject, first, tense)
    pronoun = pronoun_for(subject, thing=kind != "person")
    closing = State.of(pronoun, second, tense_after, draw.chance(0.2))
    return (
        f"{opening.english()}, but {closing.english()}",
        f"{opening.german()}, aber {closing.german()}",
    )


def _reason_of_thing(draw: Draw) -> Draft:
    """Paul buys the lamp because it is cheap. / Paul kauft die Lampe, weil sie billig ist."""
    name = draw.one(list(REASONS))
    subject, tense = draw.subject(), draw.one(PRESENT_OR_PAST)
    thing = draw.thing(THINGS_OF_VERB[name], subject, definite=True)
    because = draw.chance(0.6)
    state = draw.one(REASONS[name][0 if because else 1])
    if not compatible(state, thing.adjective):
        thing = NounPhrase(thing.noun, thing.determiner)
    clause = Clause(subject, lexicon.THING_VERBS[name], tense, thing)
    reason = State.of(pronoun_for(thing, thing=True), state, tense)
    return _subordinate(draw, clause, reason, because)


def _reason_of_person(draw: Draw) -> Draft:
    """I help the man because he is ill. / Ich helfe dem Mann, weil er krank ist."""
    subject, tense = draw.subject(), draw.one(PRESENT_OR_PAST)
    verb = lexicon.PERSON_VERBS[draw.one(list(lexicon.PERSON_VERBS))]
    animal = verb.english[0] not in ("call", "invite", "thank", "visit") and draw.chance(0.4)
    whom = draw.animal(but_not=subject) if animal else draw.person(but_not=subject)
    clause = Clause(subject, verb, tense, whom)
    pronoun = pronoun_for(whom, thing=animal)
    reason = State.of(pronoun, draw.state(lexicon.PERSON_STATES), tense)
    return _subordinate(draw, clause, reason, draw.chance(0.6))


def _subordinate(draw: Draw, clause: Clause, reason: State, because: bool) -> Draft:
    english, german = ("because", "weil") if because else ("although", "obwohl")
    return (
        f"{clause.english()} {english} {reason.english()}",
        f"{clause.german()}, {german} {reason.german('final')}",
    )


def _fronted(draw: Draw) -> Draft:
    """Because the man is tired, he sleeps. / Weil der Mann müde ist, schläft er."""
    english, german = draw.one((("because", "weil"), ("although", "obwohl"), ("if", "wenn")))
    person = draw.person()
    now: PresentOrPast = "present" if english == "if" else draw.one(PRESENT_OR_PAST)
    reason = State.of(person, draw.state(lexicon.PERSON_STATES), now)
    tense: Tense = draw.tense_of("present", "future", "can", "must") if english == "if" else now
    who: Phrase = pronoun_for(person, thing=False) if draw.chance(0.7) else draw.one((I, WE))
    deed = draw.stay(who, tense) if draw.chance(0.5) else draw.deed(who, tense, definite=True)
    while deed.verb is lexicon.TIME_VERBS["arrive"]:  # nobody arrives because he is happy
        deed = draw.stay(who, tense)
    return (
        f"{english} {reason.english()}, {deed.english()}",
        f"{german} {reason.german('final')}, {deed.german('inverted')}",
    )


def _condition(draw: Draw) -> Draft:
    """If the box is heavy, we will pick it up. / Wenn die Kiste schwer ist, werden wir sie ..."""
    name = draw.one(list(REASONS))
    state = draw.one(REASONS[name][0])
    thing = NounPhrase(draw.one(THINGS_OF_VERB[name]), "the")
    tense = draw.tense_of("present", "future", "can", "must", "want")
    who = draw.one((I, WE)) if draw.chance(0.4) else draw.person()
    deed = Clause(who, lexicon.THING_VERBS[name], tense, pronoun_for(thing, thing=True))
    condition = State.of(thing, state)
    return (
        f"if {condition.english()}, {deed.english()}",
        f"wenn {condition.german('final')}, {deed.german('inverted')}",
    )


def _sequence(draw: Draw) -> Draft:
    """Maria finds the hat and throws it away. / Maria findet den Hut und wirft ihn weg."""
    subject, tense = draw.subject(), draw.tense_of("present", "past", "future")
    second = draw.one(list(REASONS))
    things = [n for n in THINGS_OF_VERB[second] if n in THINGS_OF_VERB["find"]]
    thing = draw.thing(things, subject)
    firsts = [name for name in ("find", "look for", "buy") if thing.noun in THINGS_OF_VERB[name]]
    first = draw.one([name for name in firsts if name != second])
    opening = Clause(subject, lexicon.THING_VERBS[first], tense, thing)
    pronoun = pronoun_for(thing, thing=True)
    closing = Clause(subject, lexicon.THING_VERBS[second], tense, pronoun)
    return (
        f"{opening.english()} and {closing.english(joined=True)}",
        f"{opening.german()} und {closing.german(joined=True)}",
    )


def _report(draw: Draw) -> Draft:
    """I know that the child has ... / Ich weiß, dass das Kind ... hat."""
    subject = draw.subject()
    verb = lexicon.FRAME_VERBS[draw.one(("know", "say", "hope", "believe"))]
    conjunction = ("that", "dass")
    negated = False
    if draw.chance(0.35):
        negated = draw.chance(0.5)
        verb = lexicon.FRAME_VERBS["know" if negated else "ask"]
        conjunction = ("whether", "ob")
    who: Phrase = draw.person(but_not=subject)
    if isinstance(subject, (Name, NounPhrase)) and possessive(subject) and draw.chance(0.25):
        who = pronoun_for(subject, thing=False)
    clause, report = draw.clause(who), Clause(subject, verb, negated=negated)
    return (
        f"{report.english()} {conjunction[0]} {clause.english()}",
        f"{report.german()}, {conjunction[1]} {clause.german('final')}",
    )


def _relative_object(draw: Draw) -> Draft:
    """The hat that Anna found is red. / Der Hut, den Anna gefunden hat, ist rot."""
    name = draw.one(list(lexicon.THING_VERBS))
    thing = NounPhrase(draw.one(THINGS_OF_VERB[name]), "the")
    tense = draw.tense_of("present", "past", "past", "future", "want")
    adverb = draw.time(tense, 0.3)
    clause = Clause(draw.subject(), lexicon.THING_VERBS[name], tense, adverb=adverb)
    state = draw.state((*lexicon.THING_STATES, "red", "black", "white", "green"))
    is_so = State.of(thing, state)
    relative = lexicon.definite_article(thing.gender, "accusative")
    subject, predicate = thing.german("nominative"), is_so.german()
    return (
        f"{thing.english('nominative')} that {clause.english()} is {state}",
        f"{subject}, {relative} {clause.german('final')},{predicate.removeprefix(subject)}",
    )


def _relative_subject(draw: Draw) -> Draft:
    """We thank the man who helped Anna. / Wir danken dem Mann, der Anna geholfen hat."""
    noun = draw.one(lexicon.PERSONS)
    whom = NounPhrase(noun, "the", draw.one(("", "", *lexicon.PERSON_ATTRIBUTES[:2])))
    relative = draw.clause(NounPhrase(noun))
    while isinstance(relative, State):
        relative = draw.clause(NounPhrase(noun))
    english = f"who {relative.english(without_subject=True)}"
    german = (
        f"{lexicon.definite_article(noun.gender, 'nominative')} "
        f"{relative.german('final', without_subject=True)}"
    )
    if draw.chance(0.5):
        state = draw.state(lexicon.PERSON_STATES)
        return (
            f"{whom.english('nominative')} {english} is {state}",
            f"{whom.german('nominative')}, {german}, ist {lexicon.ADJECTIVES[state][0]}",
        )
    verb = draw.one(list(lexicon.PERSON_VERBS.values()))
    clause = Clause(draw.one((I, WE)), verb, draw.one(PRESENT_OR_PAST), whom)
    return f"{clause.english()} {english}", f"{clause.german()}, {german}"


def _infinitive(draw: Draw) -> Draft:
    """He tries to open the door. / Er versucht, die Tür aufzumachen."""
    subject = draw.subject()
    deed = draw.deed(subject, "present") if draw.chance(0.7) else draw.meeting(subject, "present")
    if draw.chance(0.6):
        verb = lexicon.FRAME_VERBS[draw.one(("try", "promise"))]
        report = Clause(subject, verb, draw.one(PRESENT_OR_PAST))
        return (
            f"{report.english()} to {deed.english_infinitive()}",
            f"{report.german()}, {deed.german_infinitive()}",
        )
    tense = draw.tense_of("present", "past", "must")
    verb = draw.one(list(lexicon.MOTION_VERBS.values()))
    way = Clause(subject, verb, tense, place=into(draw.place()))
    return (
        f"{way.english()} in order to {deed.english_infinitive()}",
        f"{way.german()}, um {deed.german_infinitive()}",
    )


def _number(draw: Draw) -> Draft:
    """The lamp costs forty-two euros. / Die Lampe kostet zweiundvierzig Euro."""
    number = draw.number(2, 99) if draw.chance(0.4) else draw.number(21, 99)
    english, german = lexicon.number_words(number)
    kind = draw.one(("price", "age", "count", "count", "many", "delay"))
    if kind == "price":
        owner = draw.one((I, WE))
        clause = Clause(draw.thing(GOODS, owner, definite=True), lexicon.FRAME_VERBS["cost"])
        return f"{clause.english()} {english} euros", f"{clause.german()} {german} Euro"
    if kind == "age":
        subject: Phrase = draw.one((I, draw.person(), draw.person()))
        age = State(subject, (f"{english} years old", f"{german} Jahre alt"))
        return age.english(), age.german()
    if kind == "delay":
        delay = (f"in {english} minutes", f"in {german} Minuten")
        verb = draw.one(
            [
                lexicon.TIME_VERBS["arrive"],
                lexicon.TIME_VERBS["come back"],
                lexicon.TIME_VERBS["get up"],
            ]
        )
        clause = Clause(draw.subject(), verb, draw.tense_of("present", "future"), adverb=delay)
        return clause.english(), clause.german()
    if kind == "many":
        many = NounPhrase(draw.one(lexicon.PERSONS[:4]), "the", "", number)
        clause = draw.stay(many, draw.tense(simple=True))
        return clause.english(), clause.german()
    subject, tense = draw.subject(), draw.tense()
    adjective = draw.maybe(0.4, lexicon.THING_ATTRIBUTES)
    things = NounPhrase(draw.one(WARES), "the", adjective, number)
    name = draw.one(("buy", "sell", "find", "pick up", "bring along", "throw away"))
    clause = Clause(subject, lexicon.THING_VERBS[name], tense, things)
    return clause.english(), clause.german()


#: One is drawn for each sentence; a pattern that is listed twice is drawn twice as often.
PATTERNS: tuple[Callable[[Draw], Draft], ...] = (
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
