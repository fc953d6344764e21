"""Short stories: a hero, a friend, one of the plots, and what can be asked about them."""

from dataclasses import dataclass, field
from random import Random

from .plots import PLOTS, Plot, Slots
from .text import expand, with_article
from .words import (
    ADJECTIVES,
    BOYS,
    COLOURS,
    FAMILY,
    GIRLS,
    GLAD,
    KINDS,
    PETS,
    PLACE_PHRASES,
    PLACES,
    SPOTS,
    TOYS,
    UNHAPPY,
    WEATHER,
)

CHILDREN = ("girl", "boy")
OPENINGS = [
    (
        "[Once upon a time|One day|Long ago], there was [a {adj} {hk}|{aadj} {hk}] [named|called] {h}. {h} "
        "lived {inp}[.| with {hhis} {fam}.]"
    ),
    (
        "{h} was {aadj} {hk} who lived {inp}. Every [morning|day], {hhe} [went for a walk|liked to play "
        "outside|sang a little song]."
    ),
    "In a [quiet|small|faraway] {place} lived {aadj} {hk} [named|called] {h}.",
    (
        "There once was {aadj} {hk} whose name was {h}. {hHe} lived {inp} and had [many friends|a warm "
        "home|a big heart]."
    ),
    (
        "It was a {wea} [morning|day|afternoon] {inp}. {h}, {aadj} {hk}, [woke up early|was looking for "
        "something to do|had a plan]."
    ),
    "{h} the {hk} lived {inp}. {hHe} was very {adj}.",
]
CLOSINGS = [
    "From that day on, {h} and {f} were [good|best] friends.",
    "That [night|evening], {h} fell asleep with a smile.",
    "{h} was very {good}. [What a day it had been!|It was the best day of all.]",
    "And {h} never forgot that day.",
    "Then {h} and {f} went home together, [tired but {good}|laughing all the way].",
    "{h} smiled. {hHe} was {good}, and so was {f}.",
]
# Facts of a plot -> question and answer about it.
FACT_QUESTIONS = [
    ("lost", "What did {name} lose?", "{name} lost {lost}."),
    ("lost", "Where was it found?", "It was found {found}."),
    ("fear", "What was {name} afraid of?", "{name} was afraid of {fear}."),
    ("food", "What did {name} share?", "{name} shared {a_food}."),
    ("made", "What did {name} make?", "{name} made {a_made}."),
    ("broke", "What did {name} break?", "{name} broke the {broke}."),
    ("seed", "What kind of seed was it?", "It was {a_seed} seed."),
    ("skill", "What did {name} learn?", "{name} learned to {skill}."),
    ("gift", "What was the gift?", "The gift was {gift}."),
    ("winner", "Who won the race?", "{name} won the race."),
    ("tool", "What did {name} bring?", "{name} brought {tool}."),
]


@dataclass
class Wishes:
    """What a story should be about; everything left open is drawn."""

    kind: str | None = None
    name: str | None = None
    thing: str | None = None
    place: str | None = None
    plot: str | None = None
    short: bool = False


@dataclass
class Story:
    """A story and the facts that questions can ask for."""

    text: str
    plot: Plot
    facts: Slots = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.facts["title"]


def draw_person(
    rng: Random, kind: str | None, name: str | None, human: bool | None
) -> tuple[str, str, list[str]]:
    """Kind, gender and the names to choose from."""
    if human is None:
        human = kind in CHILDREN or (kind is None and rng.random() < 0.5)
    if human:
        gender = kind if kind in CHILDREN else rng.choice(["girl", "boy"])
    else:
        kind = kind or rng.choice(KINDS)
        gender = rng.choice(["girl", "boy"])
    if name and name in GIRLS:
        gender = "girl"
    if name and name in BOYS:
        gender = "boy"
    of_gender = GIRLS if gender == "girl" else BOYS
    if human:
        return gender, gender, of_gender
    return kind, gender, PETS if rng.random() < 0.75 else of_gender


def add_person(
    rng: Random,
    slots: Slots,
    prefix: str,
    kind: str | None = None,
    name: str | None = None,
    human: bool | None = None,
    taken: str | None = None,
) -> None:
    """Adds the slots of a character whose name is not `taken`."""
    kind, gender, names = draw_person(rng, kind, name, human)
    chosen = name or rng.choice(names)
    while chosen == taken and not name:
        chosen = rng.choice(names)
    female = gender == "girl"
    person = {
        "": chosen,
        "k": kind,
        "ak": with_article(kind),
        "he": "she" if female else "he",
        "him": "her" if female else "him",
        "his": "her" if female else "his",
        "He": "She" if female else "He",
        "His": "Her" if female else "His",
    }
    slots.update({prefix + suffix: value for suffix, value in person.items()})


def tell(rng: Random, plot: Plot, slots: Slots) -> list[str]:
    """The sentences of a plot."""
    sentences = []
    for template in plot.sentences:
        spot = {"spot": rng.choice(SPOTS)} if "{spot}" in template else {}
        sentences.append(expand(rng, template, {**slots, **spot}))
    return sentences


def close(rng: Random, plot: Plot, slots: Slots) -> str:
    """The last sentences, sometimes with the lesson."""
    text = expand(rng, rng.choice(CLOSINGS), slots)
    choice = rng.random()
    if choice < 0.35:
        learned = expand(rng, "{h} had learned [something important|a lesson]: ", slots)
        return text + " " + learned + rng.choice(plot.lessons).lower()
    return text + " The end." if choice < 0.5 else text


def make_story(rng: Random, wishes: Wishes | None = None) -> Story:
    """One story."""
    wishes = wishes or Wishes()
    slots: Slots = {}
    facts: Slots = {}
    add_person(rng, slots, "h", kind=wishes.kind, name=wishes.name)
    name = wishes.plot
    if wishes.thing:
        name = rng.choice(["lost", "gift"])
    elif name is None:
        name = rng.choice(list(PLOTS))
    plot = PLOTS[name]
    # Only the friend in the story about honesty may be a child.
    human = False if name != "honest" or rng.random() < 0.5 else None
    add_person(rng, slots, "f", human=human, taken=slots["h"])
    draw_setting(rng, slots, wishes)
    opening = expand(rng, rng.choice(OPENINGS), slots)
    plot.prepare(rng, slots, facts)
    sentences = tell(rng, plot, slots)
    closing = close(rng, plot, slots)
    if wishes.short:
        sentences = [sentences[index] for index in plot.short]
        if plot.names_friend_when_short:
            opening += " " + expand(rng, "{h} had a friend, {f} the {fk}.", slots)
    if rng.random() < 0.5 or wishes.short:
        text = " ".join([opening, *sentences, closing])
    else:
        cut = rng.randint(2, 4)
        first, second = [opening, *sentences[:cut]], [*sentences[cut:], closing]
        text = " ".join(first) + "\n\n" + " ".join(second)
    facts.update(
        name=slots["h"],
        kind=slots["hk"],
        friend=slots["f"],
        fkind=slots["fk"],
        inp=slots["inp"],
        title=expand(rng, plot.title, slots),
    )
    return Story(text, plot, facts)


def draw_setting(rng: Random, slots: Slots, wishes: Wishes) -> None:
    """Place, weather, the thing the story may be about, and moods."""
    adjective = rng.choice(ADJECTIVES)
    place = wishes.place or rng.choice(PLACES)
    slots.update(
        adj=adjective,
        aadj=with_article(adjective),
        place=place,
        inp=PLACE_PHRASES.get(place, "in the " + place),
        wea=rng.choice(WEATHER),
        obj=wishes.thing or rng.choice(TOYS),
        col=rng.choice(COLOURS),
        good=rng.choice(GLAD),
        bad=rng.choice(UNHAPPY),
        fam=rng.choice(FAMILY),
    )


def question(rng: Random, story: Story) -> tuple[str, str]:
    """A question about a story, and its answer."""
    facts = story.facts
    who = "[What was the name of the {kind}|What is the {kind} called|Who is the main character]?"
    other = "[Who else is in the story|Who was the other one in the story]?"
    if story.plot.friend_helps:
        other = "[Who helped {name}|Who is the friend of {name}|Who was {name}'s friend]?"
    is_animal = facts["fkind"] not in (*CHILDREN, "robot", "dragon")
    what = "What kind of animal is {friend}?" if is_animal else "What is {friend}?"
    a_kind = with_article(facts["fkind"])
    questions = [
        (expand(rng, who, facts), "The {kind} is called {name}.".format_map(facts)),
        ("Where did {name} live?".format_map(facts), "{name} lived {inp}.".format_map(facts)),
        (expand(rng, other, facts), "{friend} the {fkind}.".format_map(facts)),
        (what.format_map(facts), f"{facts['friend']} is {a_kind}."),
        ("Give the story a title.", story.title),
    ]
    nouns = {f"a_{key}": with_article(facts[key]) for key in ("food", "made", "seed") if key in facts}
    slots = {**facts, **nouns}
    questions += [
        (asked.format_map(slots), answer.format_map(slots))
        for key, asked, answer in FACT_QUESTIONS
        if key in facts
    ]
    return rng.choice(questions)
