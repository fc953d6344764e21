"""Requests for stories, questions about them, and stories as plain text."""

from random import Random

from .conversation import conversation, plain_text
from .plots import PLOTS
from .stories import Wishes, make_story, question
from .text import with_article
from .words import BOYS, GIRLS, KINDS, PEOPLE, PETS, PLACE_PHRASES, PLACES, TOYS


def kind_wish(rng: Random, wishes: Wishes) -> str:
    """About an animal or a child, perhaps with a name or a place."""
    kind = wishes.kind = rng.choice([*KINDS, "girl", "boy"])
    if rng.random() < 0.35:
        names = {"girl": GIRLS, "boy": BOYS}.get(kind, PETS + PEOPLE)
        wishes.name = rng.choice(names)
        return f"{with_article(kind)} {rng.choice(['named', 'called'])} {wishes.name}"
    about = with_article(kind)
    if rng.random() < 0.3:
        wishes.place = rng.choice(PLACES)
        about += " " + PLACE_PHRASES.get(wishes.place, "in the " + wishes.place)
    return about


def wish(rng: Random, choice: float, wishes: Wishes) -> str | None:
    """What the story shall be about; fills `wishes`."""
    if choice < 0.4:
        return kind_wish(rng, wishes)
    if choice < 0.55:
        wishes.thing = rng.choice(TOYS)
        return with_article(wishes.thing)
    if choice < 0.65:
        wishes.kind = rng.choice(KINDS)
        wishes.thing = rng.choice(TOYS)
        return f"{with_article(wishes.kind)} and {with_article(wishes.thing)}"
    if choice < 0.78:
        wishes.plot = rng.choice(list(PLOTS))
        return rng.choice(PLOTS[wishes.plot].themes)
    if choice < 0.88:
        wishes.name = rng.choice(PEOPLE)
        wishes.kind = "girl" if wishes.name in GIRLS else "boy"
        return wishes.name
    return None


def story_chat(rng: Random) -> str:
    """A request for a story, the story, and up to three questions about it."""
    choice = rng.random()
    wishes = Wishes(short=rng.random() < 0.25)
    what = "a short story"
    if not wishes.short:
        what = rng.choice(["a story", "a story", "a little story"])
    verb = rng.choice(["Write", "Write", "Tell me", "Please write", "Can you tell me", "write", "Make up"])
    about = wish(rng, choice, wishes)
    asked = f"{verb} {what}" + (f" about {about}" if about else "")
    asked += "?" if verb.startswith("Can") else rng.choice([".", ".", ""])
    story = make_story(rng, wishes)
    turns = [(asked, story.text)]
    turns += [question(rng, story) for _ in range(rng.choice([0, 0, 1, 1, 2, 3]))]
    if rng.random() < 0.08:
        another = make_story(rng).text
        again = rng.choice(["Another one, please.", "Tell me another story.", "One more story."])
        turns.append((again, another))
    return conversation(rng, turns, thinking=rng.random() < 0.15)


def reading_chat(rng: Random) -> str:
    """A story in the prompt and questions about it."""
    story = make_story(rng, Wishes(short=rng.random() < 0.6))
    asked, answer = question(rng, story)
    opening = rng.choice(["Read this story: ", "Here is a story: ", ""])
    turns = [(f"{opening}{story.text}\n{asked}", answer)]
    turns += [question(rng, story) for _ in range(rng.randint(0, 2))]
    return conversation(rng, turns)


def story_text(rng: Random) -> str:
    """A story as a plain document, sometimes with its title."""
    story = make_story(rng)
    if rng.random() < 0.15:
        return plain_text(f"# {story.title}\n\n{story.text}")
    return plain_text(story.text)
