"""The words of the embedded German–English corpus, and how they inflect.

Every English word has one German word and the other way round, so that a
translation is determined by its source. Words whose English present and past
look alike ("read", "put") are left out for the same reason, and so are "you"
(three German words) and nouns whose English form hides the sex of the person.
"""

from dataclasses import dataclass
from typing import Literal

Case = Literal["nominative", "accusative", "dative"]
#: The forms of a verb that are used here: I; he, she, it; we, they.
FIRST, THIRD, PLURAL = 0, 1, 2


@dataclass(frozen=True)
class Noun:
    """A noun. `gender` is m, f or n; `weak` German nouns end in -n except in the nominative."""

    english: str
    english_plural: str
    german: str
    gender: str
    german_plural: str
    weak: bool = False

    def german_singular(self, case: Case) -> str:
        """The German noun for one."""
        return self.german + "n" if self.weak and case != "nominative" else self.german

    def german_many(self, case: Case) -> str:
        """The German noun for several."""
        takes_n = case == "dative" and self.german_plural[-1] not in "ns"
        return self.german_plural + "n" if takes_n else self.german_plural


def _nouns(table: str) -> tuple[Noun, ...]:
    rows = (row.split() for row in table.strip().splitlines())
    return tuple(Noun(row[0], row[1], row[2], row[3], row[4], len(row) > 5) for row in rows)


PERSONS = _nouns("""
man men Mann m Männer
woman women Frau f Frauen
boy boys Junge m Jungen weak
child children Kind n Kinder
king kings König m Könige
queen queens Königin f Königinnen
""")
RELATIVES = _nouns("""
uncle uncles Onkel m Onkel
aunt aunts Tante f Tanten
brother brothers Bruder m Brüder
sister sisters Schwester f Schwestern
""")
ANIMALS = _nouns("""
dog dogs Hund m Hunde
cat cats Katze f Katzen
horse horses Pferd n Pferde
""")
CARRIED = _nouns("""
letter letters Brief m Briefe
key keys Schlüssel m Schlüssel
hat hats Hut m Hüte
coat coats Mantel m Mäntel
basket baskets Korb m Körbe
clock clocks Uhr f Uhren
bag bags Tasche f Taschen
bottle bottles Flasche f Flaschen
box boxes Kiste f Kisten
book books Buch n Bücher
picture pictures Bild n Bilder
knife knives Messer n Messer
""")
FURNITURE = _nouns("""
table tables Tisch m Tische
chair chairs Stuhl m Stühle
bench benches Bank f Bänke
bed beds Bett n Betten
boat boats Boot n Boote
bicycle bicycles Fahrrad n Fahrräder
""")
OPENED = _nouns("""
suitcase suitcases Koffer m Koffer
door doors Tür f Türen
window windows Fenster n Fenster
""")
DEVICES = _nouns("""
computer computers Computer m Computer
lamp lamps Lampe f Lampen
radio radios Radio n Radios
""")
PLACES = _nouns("""
garden gardens Garten m Gärten
forest forests Wald m Wälder
kitchen kitchens Küche f Küchen
city cities Stadt f Städte
house houses Haus n Häuser
village villages Dorf n Dörfer
""")

#: Given name and its gender.
NAMES = (("Anna", "f"), ("Maria", "f"), ("Paul", "m"), ("Peter", "m"))


def _adjectives(table: str) -> dict[str, tuple[str, str]]:
    """From rows of English, German, and the German stem where it differs."""
    rows = (row.split() for row in table.split(","))
    return {english: (german, (stem or [german])[0]) for english, german, *stem in rows}


#: English adjective -> (German predicate form, German stem before an ending).
ADJECTIVES = _adjectives("""
old alt, new neu, small klein, big groß, beautiful schön, red rot, black schwarz, white weiß,
green grün, heavy schwer, expensive teuer teur, cheap billig, dirty schmutzig, broken kaputt,
young jung, clever klug, friendly freundlich, rich reich, tired müde müd, ill krank,
hungry hungrig, sad traurig, happy glücklich, angry wütend
""")
#: Adjectives before a noun (attributes), and in a clause with "to be" (states).
THING_ATTRIBUTES = ("old", "new", "small", "big", "beautiful", "red", "black", "white", "green")
THING_STATES = ("old", "new", "small", "big", "beautiful", "heavy", "expensive", "cheap", "dirty")
PERSON_ATTRIBUTES = ("old", "young", "clever", "friendly", "rich")
RELATIVE_ATTRIBUTES = ("clever", "friendly", "rich")
ANIMAL_ATTRIBUTES = ("old", "young", "small", "big", "black", "white")
PLACE_ATTRIBUTES = ("old", "small", "big", "beautiful")
PERSON_STATES = ("tired", "ill", "hungry", "sad", "happy", "angry")
#: Adjectives that contradict each other in one sentence.
OPPOSITES = (
    {"old", "new"},
    {"old", "young"},
    {"small", "big"},
    {"expensive", "cheap"},
    {"sad", "happy"},
    {"happy", "angry"},
)

# Article and adjective endings by gender (p = plural), in the order of the cases.
_CASES = ("nominative", "accusative", "dative")
_DER = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    "p": ("die", "die", "den"),
}
_EIN_ENDINGS = {"m": ("", "en", "em"), "f": ("e", "e", "er"), "n": ("", "", "em")}
_WEAK_ENDINGS = {"m": ("e", "en", "en"), "f": ("e", "e", "en"), "n": ("e", "e", "en")}
_MIXED_ENDINGS = {"m": ("er", "en", "en"), "f": ("e", "e", "en"), "n": ("es", "es", "en")}


def definite_article(gender: str, case: Case) -> str:
    """der, die, das in the given case; also the relative pronoun (in the singular)."""
    return _DER[gender][_CASES.index(case)]


def indefinite_article(stem: str, gender: str, case: Case) -> str:
    """ein, mein, sein, ihr, unser with the ending of the given gender and case."""
    return stem + _EIN_ENDINGS[gender][_CASES.index(case)]


def inflected_adjective(english: str, gender: str, case: Case, after: str) -> str:
    """The German adjective in front of a noun, `after` "der", "ein" or a "number" (plural)."""
    stem = ADJECTIVES[english][1]
    if after == "number":
        return stem + ("en" if case == "dative" else "e")
    endings = _WEAK_ENDINGS if after == "der" else _MIXED_ENDINGS
    return stem + endings[gender][_CASES.index(case)]


@dataclass(frozen=True)
class Verb:
    """A verb in both languages.

    `english`: base form, third person and past. `particle` follows a pronoun ("picks it up"),
    `preposition` precedes it ("looks for it"). `german`: infinitive, first and third person
    singular, participle. `prefix`: of a separable verb. `auxiliary`: haben or sein, which forms
    the perfect.
    """

    english: tuple[str, str, str]
    particle: str
    preposition: str
    german: tuple[str, str, str, str]
    prefix: str
    case: Case
    auxiliary: str


def _verb(row: str) -> Verb:
    english_side, german_side = (side.split() for side in row.split("|"))
    base, third, past, *after = english_side
    particle = next((word for word in after if not word.startswith("-")), "")
    preposition = next((word[1:] for word in after if word.startswith("-")), "")
    flags = {word for word in german_side if word.isupper()}
    infinitive, first, third_german, participle, *rest = (w for w in german_side if w not in flags)
    return Verb(
        english=(base, third, past),
        particle=particle,
        preposition=preposition,
        german=(infinitive, first, third_german, participle),
        prefix=rest[0] if rest else "",
        case="dative" if "DAT" in flags else "accusative",
        auxiliary="sein" if "SEIN" in flags else "haben",
    )


def _verbs(table: str) -> dict[str, Verb]:
    verbs = (_verb(row) for row in table.strip().splitlines())
    return {" ".join((v.english[0], v.particle or v.preposition)).strip(): v for v in verbs}


#: Verbs whose object is a thing, by the English base form.
THING_VERBS = _verbs("""
buy buys bought | kaufen kaufe kauft gekauft
sell sells sold | verkaufen verkaufe verkauft verkauft
find finds found | finden finde findet gefunden
look looks looked -for | suchen suche sucht gesucht
hide hides hid | verstecken verstecke versteckt versteckt
paint paints painted | streichen streiche streicht gestrichen
repair repairs repaired | reparieren repariere repariert repariert
clean cleans cleaned | putzen putze putzt geputzt
pick picks picked up | holen hole holt abgeholt ab
bring brings brought along | bringen bringe bringt mitgebracht mit
throw throws threw away | werfen werfe wirft weggeworfen weg
open opens opened | machen mache macht aufgemacht auf
close closes closed | machen mache macht zugemacht zu
switch switches switched on | schalten schalte schaltet eingeschaltet ein
turn turns turned off | schalten schalte schaltet ausgeschaltet aus
""")
#: Verbs whose object is a person or an animal.
PERSON_VERBS = _verbs("""
see sees saw | sehen sehe sieht gesehen
hear hears heard | hören höre hört gehört
visit visits visited | besuchen besuche besucht besucht
call calls called | rufen rufe ruft angerufen an
invite invites invited | laden lade lädt eingeladen ein
wake wakes woke up | wecken wecke weckt aufgeweckt auf
help helps helped | helfen helfe hilft geholfen DAT
thank thanks thanked | danken danke dankt gedankt DAT
follow follows followed | folgen folge folgt gefolgt DAT SEIN
listen listens listened -to | hören höre hört zugehört zu DAT
""")
#: Verbs with a recipient (dative) and a thing (accusative).
GIVING_VERBS = _verbs("""
give gives gave | geben gebe gibt gegeben
show shows showed | zeigen zeige zeigt gezeigt
send sends sent | schicken schicke schickt geschickt
""")
#: Verbs without an object, used with a place or with a time.
PLACE_VERBS = _verbs("""
work works worked | arbeiten arbeite arbeitet gearbeitet
sleep sleeps slept | schlafen schlafe schläft geschlafen
sing sings sang | singen singe singt gesungen
dance dances danced | tanzen tanze tanzt getanzt
wait waits waited | warten warte wartet gewartet
play plays played | spielen spiele spielt gespielt
""")
TIME_VERBS = _verbs("""
get gets got up | stehen stehe steht aufgestanden auf SEIN
fall falls fell asleep | schlafen schlafe schläft eingeschlafen ein SEIN
arrive arrives arrived | kommen komme kommt angekommen an SEIN
come comes came back | kommen komme kommt zurückgekommen zurück SEIN
""")
MOTION_VERBS = _verbs("""
go goes went | gehen gehe geht gegangen SEIN
run runs ran | laufen laufe läuft gelaufen SEIN
""")

#: Verbs that take a clause, an infinitive or a price.
FRAME_VERBS = _verbs("""
know knows knew | wissen weiß weiß gewusst
say says said | sagen sage sagt gesagt
hope hopes hoped | hoffen hoffe hofft gehofft
believe believes believed | glauben glaube glaubt geglaubt
ask asks asked | fragen frage fragt gefragt
try tries tried | versuchen versuche versucht versucht
promise promises promised | versprechen verspreche verspricht versprochen
cost costs cost | kosten koste kostet gekostet
""")

#: German finite auxiliaries in the order FIRST, THIRD, PLURAL.
AUXILIARIES = {
    "haben": ("habe", "hat", "haben"),
    "sein": ("bin", "ist", "sind"),
    "future": ("werde", "wird", "werden"),
    "can": ("kann", "kann", "können"),
    "must": ("muss", "muss", "müssen"),
    "want": ("will", "will", "wollen"),
}

_WORDS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen \
sixteen seventeen eighteen nineteen
twenty thirty forty fifty sixty seventy eighty ninety
null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn \
sechzehn siebzehn achtzehn neunzehn
zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig
"""
_ENGLISH_ONES, _ENGLISH_TENS, _GERMAN_ONES, _GERMAN_TENS = (
    line.split() for line in _WORDS.strip().splitlines()
)


def number_words(number: int) -> tuple[str, str]:
    """English and German words of 2 to 99: `21 -> ("twenty-one", "einundzwanzig")`."""
    if not 2 <= number <= 99:
        raise ValueError(f"number must be 2 to 99, got {number}")
    if number < 20:
        return _ENGLISH_ONES[number], _GERMAN_ONES[number]
    tens, ones = divmod(number, 10)
    if not ones:
        return _ENGLISH_TENS[tens - 2], _GERMAN_TENS[tens - 2]
    return (
        f"{_ENGLISH_TENS[tens - 2]}-{_ENGLISH_ONES[ones]}",
        f"{_GERMAN_ONES[ones]}und{_GERMAN_TENS[tens - 2]}",
    )
