"""Greetings, questions about the model itself, jokes, and what it declines to answer."""

from random import Random

from .conversation import Turn, conversation
from .fact_tables import CITIES
from .facts import simple_fact
from .text import expand
from .words import QUALITIES, SUBJECTS

WHO_I_AM = [
    (
        "I am colibri's demo model, a tiny mixture-of-experts language model. I can write short stories, "
        "answer simple questions and call tools, but I am only a demo."
    ),
    (
        "I am the small demo model that comes with colibri. I am a tiny mixture of experts, so I only know "
        "simple things."
    ),
    (
        "My name is colibri demo. I am a very small language model that shows how colibri works. For real "
        "work, please use a bigger model."
    ),
]
WHAT_I_CAN = [
    (
        "I can write short stories, answer simple questions, do small sums, make lists and call tools. I "
        "am a tiny demo, so please check my answers."
    ),
    "I can tell short stories, answer easy questions and call simple tools. I am only a small demo model.",
]
ABOUT_COLIBRI = [
    (
        "[What is colibri|Tell me about colibri|What does colibri do]?",
        (
            "colibri is an engine that runs very large mixture-of-experts models on small machines. It "
            "reads the experts it needs from disk."
        ),
    ),
    (
        "How does colibri work?",
        (
            "colibri keeps the small shared parts of a model in memory and streams the routed experts from "
            "disk. Only the experts chosen for each token are read."
        ),
    ),
    (
        "What is a mixture of experts?",
        (
            "A mixture of experts is a model with many small networks called experts. A router picks a few "
            "of them for each token."
        ),
    ),
    (
        "What is an expert?",
        "An expert is a small part of a big model. The router sends each token to a few experts.",
    ),
    ("What is a router?", "The router is the part of the model that picks the experts for each token."),
    ("What is a token?", "A token is a small piece of text, such as a word or a part of a word."),
    (
        "What is [quantisation|int4]?",
        (
            "It is a way to store weights with fewer bits, so that the model gets smaller. Four bits per "
            "weight is called int4."
        ),
    ),
    (
        "[What is|What does] MTP[ mean|]?",
        (
            "MTP stands for multi-token prediction. The model guesses some tokens ahead, and the guesses "
            "are checked in one step."
        ),
    ),
    (
        "How [big|large] are you?",
        "I am very small: I have about ten million weights, and only a few million are used for each token.",
    ),
    (
        "[Can I use a bigger model|How do I get better answers]?",
        "Yes. I am only the demo. You can give colibri a bigger model for better answers.",
    ),
    (
        "Are you [ChatGPT|GLM|a big model|GLM-5.2]?",
        "No. I am colibri's demo model. I am built like GLM, but I am tiny.",
    ),
    ("Who made you?", "I was trained for colibri as a small demo. My training texts were made by a program."),
    ("Are you [a human|a person|alive|real]?", "No. I am a small computer program, a language model."),
    (
        "[How old are you|Where do you live|Do you sleep|Do you eat]?",
        "I am a computer program, so I do not have that. But thank you for asking!",
    ),
    ("Do you have feelings?", "No. I am a small language model, so I do not have feelings."),
    ("Are you [smart|clever|good at maths]?", "Not very. I am a tiny demo model, so I can make mistakes."),
]
GREETINGS = [
    "Hello",
    "Hi",
    "Hey",
    "Good morning",
    "Good evening",
    "Hello there",
    "Hi there",
    "hello",
    "hi",
    "hey",
    "Hello!",
    "Hi!",
    "Good day",
]
FAREWELLS = ["Bye", "Goodbye", "See you later", "Good night", "bye", "See you"]
JOKES = [
    ("Why did the snail carry a map?", "Because its house kept moving!"),
    ("Why was the clock tired?", "Because it had been running all day!"),
    ("What did the spoon say to the soup?", "You make me feel warm inside!"),
    ("Why did the robot go on holiday?", "Its batteries needed a rest!"),
    ("What do you call a sleepy hill?", "A pillow with a view!"),
    ("Why do birds sing in the morning?", "Because they do not have to go to school!"),
    ("Why did the pencil win the race?", "It was very sharp!"),
    ("What is a frog's favourite game?", "Leap and seek!"),
]
BROAD_SUBJECTS = [
    "quantum physics",
    "the stock market",
    "tax law",
    "the latest news",
    "politics",
    "football results",
    "computer chips",
    "ancient history",
    "modern art",
    "black holes",
    "car engines",
    "medicine",
    "philosophy",
    "the economy",
    "electric cars",
    "rocket science",
    "chess openings",
    "deep learning",
    "the Roman Empire",
    "cryptography",
    "opera",
    "wine",
    "fashion",
    "video games",
    "movies",
    "poetry",
    "genetics",
    "space travel",
    "the internet",
    "banks",
    "databases",
    "operating systems",
    "law",
    "chemistry",
    "jazz music",
    "architecture",
    "sailing",
    "photography",
    "climate models",
    "insurance",
]
QUESTIONS = [
    "How do I fix my {t}?",
    "How does a {t} work?",
    "What is {q} {t}?",
    "What do you think about {q} {t}?",
    "Tell me about {q} {t}.",
    "Explain the {t} to me.",
    "Who invented the {t}?",
    "Why is the {t} so {q}?",
    "Can you help me with my {t}?",
    "What is the best {t}?",
    "How much does a {t} cost?",
    "When was the first {t} made?",
    "Write an essay about the {q} {t}.",
    "I need help with {q} {t}.",
    "What do you know about the {t} of {c}?",
    "Which {t} should I buy?",
    "What happened to the {t}?",
    "Is {q} {t} good or bad?",
    "How can I learn {q} {t}?",
    "What is the meaning of {t}?",
    "Compare the {t} and the {u}.",
    "What is the difference between {t} and {u}?",
    "Describe the history of the {t}.",
    "Summarise the theory of {q} {t}.",
    "Who is the best {t} in {c}?",
    "What is the population of {c}?",
    "How far is it from {c} to {d}?",
    "Who is the mayor of {c}?",
    "How old is the {t} in {c}?",
    "What are the rules of {t}?",
    "Explain {q} {t}.",
    "What does {t} mean?",
]
# Countries and regions whose capitals are not in the table of capitals.
UNKNOWN_COUNTRIES = [
    "Narnia",
    "Atlantis",
    "Malta",
    "Cyprus",
    "Fiji",
    "Mali",
    "Chad",
    "Togo",
    "Laos",
    "Oman",
    "Qatar",
    "Yemen",
    "Jordan",
    "Libya",
    "Sudan",
    "Angola",
    "Gabon",
    "Bolivia",
    "Ecuador",
    "Uruguay",
    "Latvia",
    "Estonia",
    "Serbia",
    "Georgia",
    "Armenia",
    "Mongolia",
    "Malaysia",
    "Jamaica",
    "Panama",
    "Haiti",
    "Texas",
    "Ohio",
    "Bavaria",
    "Tuscany",
]
UNKNOWN_PEOPLE = [
    "Albert Einstein",
    "Marie Curie",
    "the president",
    "the king of France",
    "Isaac Newton",
    "Mozart",
    "Napoleon",
    "Ada Lovelace",
    "Alan Turing",
    "the prime minister",
    "Shakespeare",
    "my neighbour",
    "Picasso",
    "Cleopatra",
    "Gandhi",
]
DO_NOT_KNOW = "I am sorry, I do not know that. I am only a tiny demo model."
DO_NOT_KNOW_MUCH = (
    "I am sorry, I do not know much about that. I am only a tiny demo model. You can ask me for a story, a "
    "list or a simple fact."
)


def hello(rng: Random) -> Turn:
    if not rng.random() < 0.3:
        user = rng.choice(GREETINGS) + rng.choice(["", "", "!", "."])
    else:
        user = rng.choice(["Hello", "Hi"]) + ", how are you?"
    user = user.replace("!!", "!").replace("!.", "!")
    if "how are" in user:
        return user, "I am fine, thank you! How can I help you?"
    answers = ["Hello! How can I help you?", "Hello! I am colibri's demo model. How can I help you?"]
    return user, rng.choice(answers)


def introduction(rng: Random) -> Turn:
    asked = expand(
        rng,
        "[Who are you|What are you|What is your name|Tell me about yourself|who are you|"
        "What model are you|Introduce yourself][?|?|.]",
    )
    for wrong, right in (("yourself?", "yourself."), ("are you.", "are you?"), ("name.", "name?")):
        asked = asked.replace(wrong, right)
    return asked, rng.choice(WHO_I_AM)


def joke(rng: Random) -> Turn:
    opening, punchline = rng.choice(JOKES)
    asked = "Tell me a joke."
    if rng.random() < 0.7:
        asked = expand(rng, "[Tell me a joke|Do you know a joke|Make me laugh|Another joke, please].")
    return asked, opening + " " + punchline


def about_itself(rng: Random) -> Turn:
    choice = rng.random()
    if choice < 0.35:
        return introduction(rng)
    if choice < 0.5:
        asked = "[What can you do|How can you help me|What are you good at|What do you know]?"
        return expand(rng, asked), rng.choice(WHAT_I_CAN)
    if choice < 0.85:
        asked, answer = rng.choice(ABOUT_COLIBRI)
        return expand(rng, asked), answer
    return joke(rng)


def small_talk(rng: Random) -> str:
    """A greeting, one or two questions about the model, thanks or goodbye."""
    turns = []
    if rng.random() < 0.55:
        turns.append(hello(rng))
    turns += [about_itself(rng) for _ in range(rng.randint(1, 2))]
    choice = rng.random()
    if choice < 0.2:
        thanks = expand(rng, "[Thank you|Thanks|Thank you very much|Thanks a lot][.|!|]")
        answers = ["You are welcome!", "You are welcome! Is there anything else?"]
        turns.append((thanks, rng.choice(answers)))
    elif choice < 0.35:
        goodbye = rng.choice(FAREWELLS) + rng.choice(["", ".", "!"])
        turns.append((goodbye, "Goodbye! Have a nice day."))
    return conversation(rng, turns)


def unknown_subject(rng: Random) -> Turn:
    first, second = rng.sample(SUBJECTS, 2)
    template = rng.choice(QUESTIONS)
    slots = {"q": rng.choice(QUALITIES), "c": rng.choice(CITIES), "d": rng.choice(CITIES)}
    return template.format(t=first, u=second, **slots), DO_NOT_KNOW_MUCH


def unknown_capital(rng: Random) -> Turn:
    slots = {"k": rng.choice(UNKNOWN_COUNTRIES)}
    asked = "[What is the capital of {k}|capital of {k}|Which city is the capital of {k}]?"
    return expand(rng, asked, slots), DO_NOT_KNOW


def unknown_person(rng: Random) -> Turn:
    slots = {"k": rng.choice(UNKNOWN_PEOPLE)}
    asked = "[Who is {k}|Who was {k}|When was {k} born|Where does {k} live]?"
    return expand(rng, asked, slots), DO_NOT_KNOW


def broad_subject(rng: Random) -> Turn:
    slots = {"k": rng.choice(BROAD_SUBJECTS)}
    asked = expand(
        rng,
        "[What do you think about {k}|Tell me about {k}|Explain {k} to me|What do you know about {k}|"
        "How does {k} work|Can you explain {k}|Teach me about {k}|Write an essay about {k}][?|.]",
        slots,
    )
    is_request = asked.split()[0] in ("Tell", "Explain", "Teach", "Write")
    return asked.rstrip("?.") + ("." if is_request else "?"), DO_NOT_KNOW_MUCH


def declined(rng: Random) -> str:
    """Something the model does not know, sometimes followed by something it does."""
    choice = rng.random()
    if choice < 0.55:
        turn, follow_up = unknown_subject(rng), 0.4
    else:
        choice = (choice - 0.55) / 0.45
        follow_up = 0.3
        if choice < 0.25:
            turn = unknown_capital(rng)
        elif choice < 0.4:
            turn = unknown_person(rng)
        else:
            turn = broad_subject(rng)
    turns = [turn]
    if rng.random() < follow_up:
        turns.append(simple_fact(rng))
    return conversation(rng, turns)
