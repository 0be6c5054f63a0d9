"""Binding in natural language: statements that give names an attribute each, then a question about one name.

"… Alice likes red. Bob likes tea. … Question: What does Bob like? Answer: Bob likes" is answered by " tea". Names and
attributes are one token each in the tokenizer at hand, so every statement is a block of the same number of tokens.
The introduction, with the tokenizer's beginning-of-text token if it has one, comes first; the query is the last token.
"""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from possym.errors import InputError
from possym.tasks.batch import check_count, check_generator, check_sequences

INTRODUCTION = "Here is what everyone likes."
STATEMENT = " {name} likes {attribute}."
QUESTION = "\nQuestion: What does {name} like?\nAnswer: {name} likes"

NAMES = """
Aaron Abby Abel Abraham Ada Adam Adele Adrian Agnes Aidan Alan Albert Alec Alex Alexander Alfred Ali Alice Allen
Alma Alvin Amanda Amber Amelia Amos Amy Ana Andre Andrea Andrew Andy Angela Angelo Anita Ann Anna Anne Annie Anthony
Antonio April Archie Ariel Arnold Arthur Ashley Audrey August Aurora Austin Ava Axel Barbara Barney Barry Basil
Beatrice Bella Ben Benedict Benjamin Bernard Bert Beth Betty Bill Billy Blake Bob Bobby Bonnie Boris Brad Bradley
Brandon Brenda Brent Brian Bridget Brooke Bruce Bruno Bryan Byron Caleb Calvin Cameron Carl Carla Carlos Carmen
Carol Caroline Carrie Casey Cathy Cecil Charles Charlie Charlotte Chase Chelsea Chloe Chris Christian Christina
Christine Christopher Cindy Claire Clara Clark Claude Claudia Cliff Clifford Clinton Clyde Cody Colin Connor Conrad
Craig Crystal Curtis Cynthia Daisy Dale Damon Dan Dana Daniel Danny Daphne Darren Dave David Dawn Dean Deborah
Dennis Derek Diana Diane Diego Dolly Dominic Don Donald Donna Doris Dorothy Doug Douglas Drew Duncan Dylan Earl
Eddie Edgar Edith Edmund Edward Edwin Eileen Elaine Eleanor Eli Elias Elijah Elizabeth Ella Ellen Elliot Elsa Elvis
Emily Emma Emmanuel Eric Erica Erik Erin Ernest Ethan Eugene Eva Evan Eve Evelyn Faith Felix Fernando Fiona Flora
Florence Floyd Frances Francis Frank Franklin Fred Frederick Gabriel Gail Gary Gavin Gene Geoffrey George Gerald
Gilbert Gina Giovanni Glen Glenn Gloria Gordon Grace Graham Grant Greg Gregory Greta Guy Gwen Hannah Hans Harold
Harriet Harry Harvey Hazel Heather Hector Heidi Helen Henry Herbert Herman Holly Homer Hope Howard Hugh Hugo Ian Ida
Igor Ingrid Irene Iris Isaac Isabel Isabella Ivan Ivy Jack Jackie Jackson Jacob Jake James Jamie Jan Jane Janet
Janice Jason Jasper Jay Jean Jeff Jeffrey Jennifer Jenny Jeremy Jerry Jesse Jessica Jill Jim Jimmy Joan Joanna Joe
Joel John Johnny Jonathan Jordan Jose Joseph Joshua Joy Joyce Juan Judith Judy Julia Julian Julie Justin Karen Karl
Kate Katherine Kathleen Kathy Katie Keith Kelly Ken Kenneth Kevin Kim Kirk Kurt Kyle Larry Laura Lauren Laurence
Lawrence Leah Lee Leo Leon Leonard Leslie Lester Levi Lewis Liam Lily Linda Lisa Logan Lois Louis Louise Lucas Lucia
Lucy Luis Luke Lydia Lynn Marc Marcus Margaret Maria Marie Marilyn Mario Marion Mark Martha Martin Marvin Mary Mason
Matt Matthew Maurice Max Maxwell Maya Megan Melissa Mia Michael Michelle Miguel Mike Miles Milton Molly Monica
Morgan Nancy Natalie Nathan Neil Nelson Nicholas Nick Nicole Nina Noah Noel Nora Norman Oliver Olivia Oscar Otto
Owen Pablo Pamela Pat Patricia Patrick Paul Paula Pedro Peggy Penny Perry Pete Peter Phil Philip Phillip Rachel
Ralph Randy Ray Raymond Rebecca Richard Rick Rita Rob Robert Roberta Robin Rodney Roger Roland Ron Ronald Rosa Rose
Ross Roy Ruby Rudolf Russell Ruth Ryan Sally Sam Samantha Samuel Sandra Sandy Sara Sarah Scott Sean Sebastian Seth
Sharon Shawn Sheila Shirley Sidney Simon Sofia Sophia Sophie Stacy Stanley Stella Stephanie Stephen Steve Steven
Stuart Sue Susan Sydney Sylvia Tara Taylor Ted Teresa Terry Theodore Theresa Thomas Tim Timothy Tina Todd Tom Tommy
Tony Tracy Tyler Ursula Vera Vernon Victor Victoria Vincent Viola Violet Virginia Vivian Walter Wanda Warren Wayne
Wendy Wesley William Willie Winston Yvonne Zachary Zoe
""".split()
ATTRIBUTES = """
red blue green yellow purple orange black white brown gray pink gold silver tea coffee milk water juice wine beer
soup bread butter cheese rice pasta fish meat chicken beef pork bacon eggs honey sugar salt pepper garlic onions
tomatoes potatoes carrots beans corn apples bananas grapes lemons oranges peaches berries cherries nuts chocolate
candy cake pie cookies pizza salad fruit vegetables dogs cats horses cows pigs sheep goats birds ducks owls eagles
lions tigers bears wolves foxes rabbits mice rats frogs snakes turtles sharks whales dolphins bees ants spiders
butterflies monkeys elephants music jazz rock opera dancing singing painting drawing reading writing poetry books
novels stories maps letters films movies theater museums art history science physics chemistry biology math algebra
geometry logic philosophy languages Latin Greek French German Spanish Italian Russian Chinese Japanese English games
chess cards puzzles toys dolls trains cars trucks buses bikes boats ships planes rockets robots computers phones
cameras radios clocks watches lamps candles mirrors chairs tables beds doors windows walls roofs gardens parks
forests trees flowers roses grass leaves seeds roots mountains hills valleys rivers lakes oceans beaches islands
deserts caves stones rocks sand mud snow ice rain wind clouds storms thunder lightning sunshine stars planets moons
comets winter spring summer autumn mornings evenings nights holidays parties weddings festivals picnics camping
hiking running swimming fishing hunting sailing skiing climbing walking sleeping cooking baking cleaning gardening
shopping traveling driving flying football soccer baseball basketball tennis golf hockey boxing wrestling yoga hats
shoes boots socks gloves coats shirts pants dresses rings jewelry cotton wool silk leather wood metal glass paper
plastic stone iron copper steel gems diamonds pearls coins money stamps bells drums guitars pianos violins flutes
horns towers bridges castles churches temples farms villages cities schools libraries markets hospitals
""".split()


class Binding(NamedTuple):
    """Prompts of one length with their blocks.

    ``tokens`` (n, length) token ids; ``answer`` (n,) the token that should follow; ``asked`` (n,) which statement is
    asked about, from 0; ``blocks`` the (start, stop) span of every statement, the same in all prompts; ``texts`` the
    prompts as strings.
    """

    tokens: Tensor
    answer: Tensor
    asked: Tensor
    blocks: list[tuple[int, int]]
    texts: list[str]


class BindingTask:
    """Statements of who likes what, and a question about one of them, in one tokenizer's tokens.

    Args:
        tokenizer: a transformers tokenizer.
        pairs: number of statements, from 2.

    Raises:
        InputError: ``pairs`` is not such a number, or the tokenizer has too few one-token names or attributes.

    Source: 2511.11579, section 4 (binding prompts of 64 and 256 pairs).

    >>> from possym.models import hub
    >>> batch = BindingTask(hub.load().tokenizer, pairs=3).sample(1)
    >>> batch.tokens.shape, batch.blocks
    (torch.Size([1, 31]), [(6, 10), (10, 14), (14, 18)])
    """

    def __init__(self, tokenizer: Any, pairs: int = 64):
        pairs = check_count("pairs", pairs, 2)
        self.tokenizer = tokenizer
        self.pairs = pairs
        self.names = one_token(tokenizer, NAMES)
        self.attributes = one_token(tokenizer, ATTRIBUTES)
        for what, found in (("names", self.names), ("attributes", self.attributes)):
            if len(found) < pairs:
                raise InputError(
                    f"pairs = {pairs}: this tokenizer writes only {len(found)} of the known {what} as one token: ask "
                    "for fewer pairs"
                )
        self.start = len(tokenizer(INTRODUCTION)["input_ids"])
        statement = STATEMENT.format(name=next(iter(self.names)), attribute=next(iter(self.attributes)))
        self.width = len(tokenizer(statement, add_special_tokens=False)["input_ids"])
        self.likes = tokenizer(" likes", add_special_tokens=False)["input_ids"][-1]

    def sample(self, n: int, *, generator: torch.Generator | None = None) -> Binding:
        """Draw ``n`` prompts; every statement is asked about equally often, as far as ``n`` allows.

        Names and attributes are drawn without repetition within a prompt. ``generator`` is a CPU generator; None is a
        fresh one seeded 0.

        Raises:
            InputError: ``n`` or ``generator`` do not fit, or the tokenizer splits statements unevenly.
        """
        n = check_count("n", n, 1)
        generator = check_generator(generator)
        rounds = [torch.randperm(self.pairs, generator=generator) for _ in range(-(-n // self.pairs))]
        asked = torch.cat(rounds)[:n]
        names, attributes = list(self.names), list(self.attributes)
        texts, answers = [], []
        for which in asked.tolist():
            who = [names[i] for i in torch.randperm(len(names), generator=generator)[: self.pairs].tolist()]
            what = [attributes[i] for i in torch.randperm(len(attributes), generator=generator)[: self.pairs].tolist()]
            facts = "".join(STATEMENT.format(name=a, attribute=b) for a, b in zip(who, what, strict=True))
            texts.append(INTRODUCTION + facts + QUESTION.format(name=who[which]))
            answers.append(self.attributes[what[which]])
        rows = self.tokenizer(texts)["input_ids"]
        stops = [self.start + self.width * k for k in range(self.pairs + 1)]
        lengths = {len(row) for row in rows}
        if len(lengths) > 1 or any(row[at + 1] != self.likes for row in rows for at in stops[:-1]):
            raise InputError("this tokenizer does not write every statement with the same number of tokens")
        blocks = list(itertools.pairwise(stops))
        return Binding(torch.tensor(rows), torch.tensor(answers), asked, blocks, texts)

    def solve(self, tokens: Tensor) -> Tensor:
        """Return the answers (n,) of prompts (n, length), found from the tokens alone.

        Raises:
            InputError: not prompts of this task.
        """
        tokens = check_sequences(tokens, len(self.tokenizer))
        asked = tokens[:, -2:-1]
        first = (tokens[:, : self.start + self.width * self.pairs] == asked).long()
        if not first.any(1).all() or (tokens[:, -1] != self.likes).any():
            raise InputError("tokens: give prompts as sample() draws them")
        position = first.argmax(1, keepdim=True)
        return tokens.gather(1, position + 2).squeeze(1)


def one_token(tokenizer: Any, words: list[str]) -> dict[str, int]:
    """Return the words that the tokenizer writes as one token after a space, with the token's id."""
    encoded = tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    return {word: ids[0] for word, ids in zip(words, encoded, strict=True) if len(ids) == 1}
