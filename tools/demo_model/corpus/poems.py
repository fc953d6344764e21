"""Four-line poems with a fixed rhyme scheme."""

from random import Random

from .conversation import Turn
from .text import capitalise, expand

SUBJECTS = [
    "moon",
    "sea",
    "rain",
    "snow",
    "sun",
    "wind",
    "night",
    "spring",
    "tree",
    "river",
    "cat",
    "bird",
    "star",
    "friend",
]
# First line of a couplet and the alternatives of the second, by rhyme.
COUPLETS = [
    (
        "The {k} is full of silver light,",
        "[it shines for us all through the night|and makes the whole wide world look bright].",
    ),
    (
        "The {k} is here on every day,",
        "[it calls the children out to play|and gently shows us all the way].",
    ),
    (
        "The {k} is singing to the sea,",
        "[it rests beneath the old green tree|and feels so wild and warm and free].",
    ),
    (
        "The {k} looks up into the sky,",
        "[and dreams that it could learn to fly|where all the clouds are white and high].",
    ),
    (
        "The {k} is softer than the snow,",
        "[it gives the hills a golden glow|and makes the busy hours slow].",
    ),
    (
        "The {k} is quiet, calm and deep,",
        "[it helps the tired ones to sleep|a secret that the mountains keep].",
    ),
    (
        "The {k} is dancing in the air,",
        "[it moves without a single care|and when you look, it is still there].",
    ),
    (
        "The {k} is humming its own song,",
        "[it stays with us the whole year long|and all the birds will sing along].",
    ),
]


def poem(rng: Random, subject: str) -> str:
    """Two neighbouring couplets about the subject."""
    index = rng.randrange(len(COUPLETS))
    first, second = COUPLETS[index]
    third, fourth = COUPLETS[(index + 1) % len(COUPLETS)]
    third = capitalise(third.replace("The {k}", "My friend, the {k},"))
    return expand(rng, "\n".join([first, second, third, fourth]), {"k": subject})


def poem_request(rng: Random) -> list[Turn]:
    """A request for a poem, and the poem."""
    # This draw decides nothing; without it every seed would give another corpus.
    rng.randrange(1)
    subject = rng.choice(SUBJECTS)
    asked = expand(
        rng,
        "[Write a poem about the {k}|Write a short poem about the {k}|Give me a poem about the {k}|"
        "A poem about the {k}, please].",
        {"k": subject},
    )
    return [(asked, poem(rng, subject))]
