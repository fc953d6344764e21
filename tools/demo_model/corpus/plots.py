"""The ten plots of the stories, as a table of sentence templates.

Slots: `h` is the hero and `f` the friend, with `hk` kind, `hak` kind with article, and the
pronouns `hhe`, `hhim`, `hhis`, `hHe`, `hHis` (the same for `f`). `spot` is a place drawn anew for
the sentence that names it. `prepare` draws what the plot needs and notes the facts that can be
asked about.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .text import capitalise
from .words import FOODS, SPOTS

FEARS = {
    "the dark": ("take a small lamp", "The room was dark, but nothing bad was in it", "the dark"),
    "deep water": ("hold on to a log", "The water was cool and calm", "the water"),
    "high places": ("climb one step at a time", "The view from the top was lovely", "high places"),
    "thunder": ("count to ten", "The thunder was only a loud noise", "thunder"),
    "big dogs": ("stand still and speak softly", "The dog only wanted to play", "big dogs"),
    "loud noises": ("cover both ears and breathe slowly", "The noise was soon over", "loud noises"),
}
TROUBLES = [
    ("was stuck in the mud", "a long rope", "pulled until {him} was free"),
    ("had a thorn in one foot", "a steady hand", "took the thorn out very gently"),
    ("was caught in an old net", "a pair of scissors", "cut the net and set {him} free"),
    ("had fallen into a deep hole", "a tall ladder", "put the ladder down into the hole"),
    ("was lost and could not find the way home", "a good map", "showed {him} the right path"),
    ("was cold and wet from the rain", "a warm blanket", "wrapped {him} in the blanket"),
]
MAKEABLE = {
    "boat": (("wood", "rope", "an old sheet"), "It floated on the pond without sinking"),
    "birdhouse": (("wood", "nails", "green paint"), "Two small birds moved in the very next day"),
    "kite": (("paper", "two sticks", "a long string"), "It flew high above the roofs"),
    "soup": (("carrots", "potatoes", "fresh water"), "It smelled so good that everyone came to taste it"),
    "snowman": (("snow", "a carrot", "two buttons"), "It stood in front of the house all winter"),
    "tree house": (("planks", "a ladder", "strong rope"), "From up there they could see the whole valley"),
    "cake": (("flour", "eggs", "sugar"), "It was soft and sweet, and nobody left a crumb"),
    "lamp": (("a jar", "a candle", "some wire"), "It lit up the whole room"),
    "scarf": (("blue wool", "two needles", "a lot of time"), "It was long enough for two"),
    "drum": (("an old pot", "a piece of leather", "some string"), "It made a deep and happy sound"),
}
FRAGILE = ["blue vase", "big window", "white plate", "old clock", "glass lamp", "tea cup", "mirror"]
SEEDS = ["sunflower", "pumpkin", "bean", "tomato", "rose", "apple", "melon", "carrot"]
GOALS = ["the old mill", "the big oak tree", "the bridge", "the top of the hill", "the red gate"]
SKILLS = {
    "swim": ("in the pond", "kick with both legs"),
    "ride a bike": ("on the long road", "look ahead and not down"),
    "play the flute": ("in the quiet barn", "blow softly"),
    "skate": ("on the frozen lake", "bend both knees"),
    "whistle": ("on the way to school", "make the lips round"),
    "draw a horse": ("at the kitchen table", "start with big simple shapes"),
    "tie a knot": ("on the porch", "make two loops"),
    "read": ("by the window", "say one sound after another"),
    "dance": ("in the big hall", "listen to the music"),
    "bake bread": ("in the warm kitchen", "wait until the dough is twice as big"),
}

Slots = dict[str, str]
Prepare = Callable[[Random, Slots, Slots], None]


@dataclass(frozen=True)
class Plot:
    """One plot: `prepare(rng, slots, facts)`, six sentences, and what surrounds them."""

    prepare: Prepare
    sentences: tuple[str, str, str, str, str, str]
    title: str
    lessons: tuple[str, ...]
    themes: tuple[str, ...]
    short: tuple[int, int, int]
    """Sentences of the short version."""
    names_friend_when_short: bool = True
    """Whether the short version says who the friend is."""
    friend_helps: bool = True
    """Whether one can ask who helped."""


def prepare_lost(rng: Random, slots: Slots, facts: Slots) -> None:
    # Neighbours in a fixed cyclic order: three different places, easy to learn.
    start = rng.randrange(len(SPOTS))
    first, second, third = (SPOTS[(start + step) % len(SPOTS)] for step in range(3))
    slots.update(first=first, second=second, third=third, title_object=capitalise(slots["obj"]))
    facts.update(lost=f"{slots['hhis']} {slots['col']} {slots['obj']}", found=third)


def prepare_help(rng: Random, slots: Slots, facts: Slots) -> None:
    trouble, tool, act = rng.choice(TROUBLES)
    slots.update(trouble=trouble, tool=tool, act=act.format(him=slots["fhim"]), first=rng.choice(SPOTS))
    facts.update(tool=tool)


def prepare_fear(rng: Random, slots: Slots, facts: Slots) -> None:
    fear = rng.choice(list(FEARS))
    tip, result, short = FEARS[fear]
    slots.update(fear=fear, tip=tip, result=result, short=short)
    facts.update(fear=fear)


def prepare_share(rng: Random, slots: Slots, facts: Slots) -> None:
    slots["food"] = rng.choice(FOODS)
    facts.update(food=slots["food"])


def prepare_make(rng: Random, slots: Slots, facts: Slots) -> None:
    thing = rng.choice(list(MAKEABLE))
    (first, second, third), result = MAKEABLE[thing]
    slots.update(thing=thing, title_thing=capitalise(thing), result=result)
    slots.update(part1=first, part2=second, part3=third)
    facts.update(made=thing)


def prepare_honest(rng: Random, slots: Slots, facts: Slots) -> None:
    slots["fragile"] = rng.choice(FRAGILE)
    facts.update(broke=slots["fragile"])


def prepare_grow(rng: Random, slots: Slots, facts: Slots) -> None:
    slots["seed"] = rng.choice(SEEDS)
    facts.update(seed=slots["seed"])


def prepare_race(rng: Random, slots: Slots, facts: Slots) -> None:
    slots["goal"] = rng.choice(GOALS)
    facts.update(winner=slots["h"])


def prepare_skill(rng: Random, slots: Slots, facts: Slots) -> None:
    skill = rng.choice(list(SKILLS))
    where, tip = SKILLS[skill]
    slots.update(skill=skill, where=where, tip=tip)
    facts.update(skill=skill)


def prepare_gift(_rng: Random, slots: Slots, facts: Slots) -> None:
    facts.update(gift=f"a {slots['col']} {slots['obj']}")


PLOTS = {
    "lost": Plot(
        prepare=prepare_lost,
        sentences=(
            (
                "{h} had a {col} {obj} [that {hhe} loved very much|which was a gift from {hhis} {fam}|and "
                "took it everywhere]. But one {wea} day, the {obj} was gone!"
            ),
            '"[Oh no|Oh dear]! Where is my {obj}?" [cried|said] {h}. {hHe} felt very {bad}.',
            (
                '{f} the {fk} [heard this|came by|saw that {h} was {bad}] and [said|asked], "[Do not '
                'worry. I will help you look.|Can I help you?|Let us look for it together.]"'
            ),
            (
                "[First|At first], they looked {first}, but [the {obj} was not there|they found only "
                "leaves|there was nothing]. Then they looked {second}, but [it was not there either|they "
                "had no luck]."
            ),
            (
                "[At last|Finally], they looked {third}. [There it was!|And there was the {col} {obj}!|"
                "Something {col} was there. It was the {obj}!]"
            ),
            (
                '"[Thank you|Thank you so much], {f}!" said {h}[.| and gave {fhim} a big hug.] "[You are a '
                'true friend.|I could not have found it without you.]"'
            ),
        ),
        title="{h} and the Lost {title_object}",
        lessons=(
            "It is good to ask for help.",
            "Friends make a long search short.",
            "Look again before you give up.",
        ),
        themes=("losing something", "something that gets lost"),
        short=(0, 3, 4),
    ),
    "help": Plot(
        prepare=prepare_help,
        sentences=(
            (
                'One {wea} [day|morning], {h} heard a [small|weak|sad] voice {first}. "[Help|Please help '
                'me]!" it [said|called].'
            ),
            "It was {f}, {fak}. {f} {trouble}.",
            (
                '"[Do not be afraid|Wait here|Stay calm]," said {h}. "I [know what to do|will come back '
                'soon]." {hHe} [ran home and came back|came back] with {tool}.'
            ),
            '{h} {act}. "[Now you are safe|There you go]," {hhe} said.',
            (
                '"[Thank you|You are very kind]!" said {f}. "[One day I will help you too.|I will never '
                'forget this.]"'
            ),
            (
                "[A few days later|The next week], {h} [lost {hhis} way in the fog|could not carry a heavy "
                "bag|needed help with a big job]. {f} [came at once|was there] and helped {hhim}."
            ),
        ),
        title="{h} Helps a Friend",
        lessons=(
            "A kind act always comes back.",
            "Helping others makes two hearts happy.",
            "Even a small friend can be a big help.",
        ),
        themes=("helping others", "kindness"),
        short=(0, 1, 4),
        friend_helps=False,
    ),
    "fear": Plot(
        prepare=prepare_fear,
        sentences=(
            (
                "{h} was [good at many things|{adj} and strong], but {hhe} was afraid of {fear}. [The "
                "others sometimes laughed.|Nobody knew about it.|It made {hhim} feel {bad}.]"
            ),
            'One day, {f} the {fk} asked, "[Why do you look so {bad}|What is wrong], {h}?"',
            (
                '"I am afraid of {fear}," [said|whispered] {h}. "[I do not know what to do.|Please do not '
                'laugh.]"'
            ),
            (
                '"[That is all right|I was afraid once too]," said {f}. "[Just|You can] {tip}. I will [be '
                'right here|stay with you]."'
            ),
            "So {h} tried. [At first {hhis} legs were shaking.|{hHis} heart was beating fast.] {result}.",
            '"[I did it|Look, I did it]!" said {h}. {hHe} was not afraid of {short} anymore.',
        ),
        title="Brave {h}",
        lessons=("Being brave means trying even when you are afraid.", "Small steps can beat a big fear."),
        themes=("being brave", "being afraid"),
        short=(0, 1, 4),
    ),
    "share": Plot(
        prepare=prepare_share,
        sentences=(
            "One day, {h} had a [big|sweet|tasty] {food}. {hHe} sat down {spot} to eat it.",
            (
                'Then {f} the {fk} came by. "[I am so hungry|I have not eaten all day]," said {f}. "[May I '
                'have a bite|Can I have some], please?"'
            ),
            '"No, this is my {food}!" said {h}. {f} walked away and looked very {bad}.',
            "{h} took a bite, but the {food} did not taste good. {hHe} [felt {bad} too|thought about {f}].",
            (
                '"Wait, {f}!" {hhe} called. "[I am sorry|I was not kind]. Let us share." {h} cut the '
                "{food} in two and gave half to {f}."
            ),
            (
                "They ate together and [laughed|talked until the sun went down]. [Now the {food} was the "
                "best one ever.|It was much better this way.]"
            ),
        ),
        title="{h} Learns to Share",
        lessons=("Food tastes better when it is shared.", "Sharing makes everyone happy."),
        themes=("sharing",),
        short=(0, 1, 4),
        friend_helps=False,
    ),
    "make": Plot(
        prepare=prepare_make,
        sentences=(
            (
                'One {wea} day, {h} wanted to make a {thing}. "[What do I need|What will I need]?" {hhe} '
                "asked {hhis} friend {f}, {fak}."
            ),
            (
                '"You need {part1}, {part2} and {part3}," said {f}. "[I can help you.|Let us find them '
                'together.]"'
            ),
            (
                "They found {part1} [at home|in the shed|at the market]. They got {part2} from {h}'s "
                "{fam}. [It was hard to find {part3}, but they did not give up.|{f} brought {part3}.]"
            ),
            (
                "Then they worked [all day|all morning|until it was dark]. [Once, everything went wrong, "
                "and they had to start again.|It was not easy, but it was fun.]"
            ),
            "At last the {thing} was ready. {result}.",
            (
                '"[We did it|It is perfect]!" said {h}. "[We make a good team|I could not have done it '
                'alone]," [{hhe} added|{hhe} told {f}].'
            ),
        ),
        title="The {title_thing}",
        lessons=("Good things take time and work.", "Many hands make light work."),
        themes=("making something", "building something"),
        short=(0, 3, 4),
    ),
    "honest": Plot(
        prepare=prepare_honest,
        sentences=(
            (
                "One day, {h} was [playing with a ball|running and jumping] inside the house. Crash! The "
                "{fragile} [fell and broke|was broken]."
            ),
            "{h} was {bad}. {hHe} hid the pieces [under the bed|behind the door|in a box] and said nothing.",
            (
                '[That evening|Later], {hhis} {fam} asked, "Do you know what happened to the {fragile}?" '
                "{h} [looked at the floor|felt hot and small]."
            ),
            '{hHis} friend {f} whispered, "[Tell the truth|Just say it]. It will be all right."',
            '"I broke it," said {h}. "[I am very sorry|I am sorry that I hid it]."',
            (
                '"Thank you for telling me," said {hhis} {fam}. "[Things can be fixed.|I am not angry.] '
                'Let us [clean up|fix it] together."'
            ),
        ),
        title="{h} Tells the Truth",
        lessons=("It is always best to tell the truth.", "The truth is easier to carry than a secret."),
        themes=("telling the truth", "honesty"),
        short=(0, 1, 4),
    ),
    "grow": Plot(
        prepare=prepare_grow,
        sentences=(
            "One spring morning, {h} found a {seed} seed. {hHe} put it in the ground {spot}.",
            (
                "{h} gave it water every day. [But nothing happened.|One week passed, and nothing "
                "happened.] {h} was {bad}."
            ),
            (
                '"[It will never grow|Maybe it is a bad seed]," said {h}. "[Be patient|Wait a little '
                'longer]," said {hhis} friend {f}, {fak}. "[Good things need time.|Seeds need water, sun '
                'and time.]"'
            ),
            (
                "So {h} waited. [It rained, and then the sun came out.|The days got warmer.] Then one "
                "morning, there was a tiny green leaf!"
            ),
            (
                "The plant grew [taller and taller|bigger every day]. By the end of summer, it was [taller "
                "than {h}|the most beautiful plant of all]."
            ),
            (
                '"[You were right|Look how big it is], {f}!" said {h}. They [danced around it|sat in its '
                "shade and told stories]."
            ),
        ),
        title="The Little Seed",
        lessons=("Patience makes good things grow.", "A little care every day is enough."),
        themes=("a seed", "patience"),
        short=(0, 3, 4),
        names_friend_when_short=False,
    ),
    "race": Plot(
        prepare=prepare_race,
        sentences=(
            (
                '{f} the {fk} was very fast. {fHe} [told everyone about it|always said, "Nobody can beat '
                'me."] One day, {h} said, "Let us race to {goal}."'
            ),
            '{f} laughed. "[You are much too slow|You will lose], {h}!" But {h} was not afraid.',
            (
                "[One, two, three, go!|The race began.] {f} ran ahead at once. Soon {fhe} could not see "
                '{h} anymore. "[I have lots of time|I can rest]," {fhe} thought, and {fhe} [lay down under '
                "a tree|stopped to eat some berries|fell asleep]."
            ),
            (
                "But {h} did not stop. {hHe} went on, step by step, [up the hill and down again|past the "
                "well and over the bridge]."
            ),
            (
                "When {f} [woke up|looked up], {h} was almost at {goal}. {f} ran and ran, but it was too "
                "late. {h} had won the race!"
            ),
            (
                '"[Well done|You won], {h}," said {f}. "[I will not laugh at you again.|You are stronger '
                'than I thought.]"'
            ),
        ),
        title="The Great Race",
        lessons=("Slow and steady can win.", "It is better to finish slowly than to stop."),
        themes=("a race",),
        short=(0, 3, 4),
        friend_helps=False,
    ),
    "skill": Plot(
        prepare=prepare_skill,
        sentences=(
            "More than anything, {h} wanted to learn to {skill}.",
            (
                'On [Monday|the first day], {hhe} tried {where}. It did not work. "[This is too hard|I '
                'will never learn it]," said {h}.'
            ),
            (
                "On [Tuesday|the second day], {hhe} tried again. It was a little better, but still not "
                "good. {h} was {bad}."
            ),
            'Then {f} the {fk} said, "Try to {tip}. [It helped me.|That is the secret.]"',
            (
                "On [Wednesday|the third day], {h} [did what {f} had said|remembered the words of {f}]. "
                "And it worked! {h} could {skill}!"
            ),
            '"[Well done|Bravo]!" said {f}. [Everybody clapped.|{hHis} {fam} was very proud.]',
        ),
        title="{h} Tries Again",
        lessons=("Practice makes hard things easy.", "Nobody is good at something on the first day."),
        themes=("learning something new", "practice"),
        short=(0, 3, 4),
        names_friend_when_short=False,
    ),
    "gift": Plot(
        prepare=prepare_gift,
        sentences=(
            (
                "It was the birthday of {f}, {fak}. {h} wanted to give {fhim} [a nice gift|something "
                "special], but {hhe} had no money."
            ),
            (
                '{h} [thought and thought|sat down {spot} and thought]. "[I have an idea|I know]," {hhe} '
                'said. "I will make a {col} {obj}!"'
            ),
            (
                "{hHe} worked [all night|for three days]. {hHis} {fam} helped a little. [When it was done, "
                "it was a bit crooked.|At last it was ready.]"
            ),
            (
                'At the party, {f} got many big boxes. {h} was {bad}. "[My gift is so small|Maybe {f} will '
                'not like it]," {hhe} thought.'
            ),
            (
                '{f} opened the small box and saw the {col} {obj}. "[Did you make this?|This is '
                'wonderful!]" {fhe} said.'
            ),
            '"It is the best gift of all," said {f} [and put it in the middle of the table|and hugged {h}].',
        ),
        title="A Gift for {f}",
        lessons=("The best gifts come from the heart.", "A gift does not have to be big."),
        themes=("a birthday", "a gift"),
        short=(0, 1, 4),
        friend_helps=False,
    ),
}
