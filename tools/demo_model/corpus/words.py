"""Vocabulary of the corpus: names, animals, things, places, and the word lists of tasks."""


def words(text: str) -> list[str]:
    """The words of a text, which keeps a long list readable."""
    return text.split()


GIRLS = words(
    """
    Anna Mia Lily Sara Nora Ella Ruby Rosa Ivy Zoe Clara Emma Lucy Maya Hana Nina Tess Alma Vera Lola
    Amy Ida Kim Eva Luna Olga Pia Rita June Dora
    """
)
BOYS = words(
    """
    Tom Ben Sam Max Leo Finn Jack Oscar Hugo Noah Adam Paul Otto Luca Omar Eric Theo Milo Ivan Dan Joe
    Kai Rob Tim Carl Alex Felix Hans Ali Pedro
    """
)
PEOPLE = GIRLS + BOYS
PETS = words(
    """
    Pip Fluff Dot Biscuit Patch Olly Bingo Tiko Momo Pepper Rusty Sunny Nibbles Coco Berry Hoppy Whisk
    Bramble Tilly Button Socks Pogo Waffle Fern Mossy
    """
)
KINDS = words(
    """
    fox rabbit bear mouse owl cat dog hedgehog squirrel frog duck turtle deer badger otter lamb goat
    pony puppy kitten monkey elephant penguin lion wolf bee snail robot dragon parrot
    """
)
ADJECTIVES = words(
    """
    little small kind brave clever shy happy curious gentle quiet cheerful young friendly careful funny
    lazy busy proud hungry patient
    """
)
COLOURS = words("red blue green yellow white black brown purple orange pink silver golden")
TOYS = words(
    """
    ball kite hat scarf boat drum book lantern bell cup basket key ring shell box bag map flute spoon
    button feather ribbon whistle umbrella blanket doll
    """
)
FOODS = words(
    """
    apple pear cake pie cookie sandwich plum carrot banana bun pancake berry peach muffin nut
    """
)
PLACES = words(
    """
    forest garden village meadow park farm beach valley town island castle market mill harbour orchard
    """
)
# Places that do not take "in the".
PLACE_PHRASES = {
    "beach": "on the beach",
    "farm": "on the farm",
    "island": "on the island",
    "market": "at the market",
    "harbour": "at the harbour",
}
SPOTS = [
    "under the old tree",
    "behind the big rock",
    "near the river",
    "in the tall grass",
    "under the bridge",
    "next to the well",
    "behind the barn",
    "in a hollow log",
    "under the wooden bench",
    "beside the pond",
    "on top of the hill",
    "inside the old shed",
    "at the edge of the field",
    "between two bushes",
]
WEATHER = words("sunny windy rainy cold warm cloudy foggy snowy")
GLAD = words("happy glad proud thankful cheerful")
UNHAPPY = words("sad worried upset lonely unhappy")
FAMILY = ["mother", "father", "grandmother", "grandfather", "aunt", "uncle", "big sister", "big brother"]
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words(
    """
    January February March April May June July August September October November December
    """
)
SEASONS = words("spring summer autumn winter")
NUMBERS = words("zero one two three four five six seven eight nine ten eleven twelve")
# Subjects that the model declines to talk about.
SUBJECTS = words(
    """
    printer phone computer laptop kitchen bathroom roof tax visa passport guitar piano violin camera
    engine bicycle motor battery website program server router network password email account loan
    mortgage salary contract lawyer hospital disease virus vaccine muscle diet yoga marathon tennis golf
    rugby cricket olympics election parliament senate treaty war empire dynasty pyramid temple cathedral
    novel poet painter sculptor orchestra symphony ballet theatre actor director festival recipe curry
    sushi steak pizza burger cocktail whisky perfume jewel diamond ruby crystal volcano earthquake
    hurricane glacier desert canyon reef galaxy comet asteroid telescope microscope molecule atom
    electron photon proton neutron quark gravity energy entropy magnet laser radar sonar satellite
    rocket shuttle drone submarine tractor harvest fertilizer pesticide insect fungus bacteria enzyme
    protein hormone neuron brain memory dream emotion psychology sociology economics inflation currency
    bitcoin blockchain compiler algorithm theorem equation integral derivative matrix vector tensor
    graph topology calculus statistics probability logic grammar syntax linguistics Latin Sanskrit
    Arabic Korean computing robotics vision
    """
)
QUALITIES = words(
    """
    quantum modern ancient digital solar electric nuclear global medical legal social local public
    private new old best cheap fast simple hard big German Roman Chinese American European famous secret
    personal
    """
)
