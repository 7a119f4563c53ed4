"""Stories for `word_problems` from buildings, teams, schools and cafes. See `story.py` for the notation."""

from __future__ import annotations

from unmask.tasks.story import Story

STORIES = (
    Story(
        "library",
        {"s": (3, 12), "b": (10, 40), "o": (5, 90), "n": (4, 50)},
        (
            ("{A} fills {s} shelves with {b} books each.", "there are {s} shelves of {b} books."),
            ("{o} books are lent out and {n} new ones arrive.", "then {n} new books come and {o} are lent."),
        ),
        ("How many books are on the shelves?", "How many books stand there now?"),
        (("p=s*b", "at first {} books."), ("q=p+n", "with the new ones {}."), ("r=q-o", "now {} books.")),
    ),
    Story(
        "rope",
        {"k": (2, 9), "l": (3, 25), "c": (5, 60), "n": "k*l", "a": "n+c"},
        (
            ("{A} has a rope of {a} meters and cuts off {c} meters.", "from a rope of {a} meters {A} uses {c}."),
            ("the rest is cut into pieces of {l} meters.", "{he} cuts what is left into pieces {l} meters long."),
        ),
        ("How many pieces are there?", "How many pieces does {he} get?"),
        (("p=a-c", "{} meters are left."), ("r=p/l", "that makes {} pieces.")),
    ),
    Story(
        "fence",
        {"a": (5, 40), "b": (3, 30), "c": (2, 9)},
        (
            (
                "{A} builds a fence around a field {a} meters long and {b} meters wide.",
                "a field of {a} by {b} meters gets a fence.",
            ),
            ("one meter costs ${c}.", "{he} pays ${c} for each meter."),
        ),
        ("How many dollars does the fence cost?", "What does the whole fence cost, in dollars?"),
        (
            ("p=a+b", "length and width make {}."),
            ("q=p*2", "the fence is {} meters."),
            ("r=q*c", "it costs {} dollars."),
        ),
    ),
    Story(
        "paint",
        {"a": (3, 15), "b": (2, 10), "n": (2, 4), "d": (2, 15)},
        (
            ("a wall is {a} meters long and {b} meters high.", "{A} paints walls that are {a} meters by {b} meters."),
            (
                "there are {n} such walls, less {d} square meters for windows.",
                "{he} has {n} of them, but {d} square meters are windows.",
            ),
        ),
        ("How many square meters are painted?", "How large is the area to paint, in square meters?"),
        (("p=a*b", "one wall has {}."), ("q=p*n", "all walls have {}."), ("r=q-d", "{} are painted.")),
    ),
    Story(
        "team",
        {"k": (3, 9), "t": (2, 9), "c": (2, 12), "n": "k*t", "a": "n-c"},
        (
            ("{a} children want to play, and {c} more arrive.", "to the {a} players come {c} more."),
            ("they form teams of {k}, and every team needs 2 balls.", "each team has {k} players and 2 balls."),
        ),
        ("How many balls are needed?", "How many balls do they use?"),
        (("p=a+c", "there are {} players."), ("q=p/k", "that makes {} teams."), ("r=q*2", "they need {} balls.")),
    ),
    Story(
        "water",
        {"a": (200, 900, 10), "r": (5, 30), "m": (3, 15), "d": (20, 90, 5)},
        (
            ("a tank holds {a} liters of water.", "{A} has a tank with {a} liters."),
            (
                "a pump takes out {r} liters a minute for {m} minutes.",
                "for {m} minutes {r} liters run out each minute.",
            ),
            ("then {d} liters of rain come in.", "after that {he} pours in {d} liters."),
        ),
        ("How many liters are in the tank?", "How much water is there now, in liters?"),
        (("p=r*m", "{} liters go out."), ("q=a-p", "{} are left."), ("s=q+d", "now there are {} liters.")),
    ),
    Story(
        "delivery",
        {"t": (2, 8), "b": (5, 25), "w": (2, 12), "e": (10, 60, 5)},
        (
            ("{t} trucks carry {b} boxes each.", "{A} loads {b} boxes onto each of {t} trucks."),
            ("a box weighs {w} kilos.", "every box has a weight of {w} kilos."),
            ("there is also a machine of {e} kilos.", "a crate of {e} kilos comes on top."),
        ),
        ("How many kilos are carried?", "What is the whole weight in kilos?"),
        (("p=t*b", "there are {} boxes."), ("q=p*w", "they weigh {} kilos."), ("r=q+e", "in all {} kilos.")),
    ),
    Story(
        "cafe",
        {"a": (3, 20), "p": (2, 6), "b": (2, 15), "q": (3, 9), "c": (2, 9), "s": (2, 8), "t": (2, 12)},
        (
            (
                "{A}'s cafe sells {a} teas at ${p} and {b} cakes at ${q}.",
                "in a cafe {a} teas cost ${p} each and {b} cakes ${q} each.",
            ),
            ("{c} soups at ${s} are sold as well.", "guests also order {c} soups for ${s} each."),
            ("{t} dollars go to the cook.", "the cook gets {t} dollars of it."),
        ),
        ("How many dollars are left?", "How much stays in the cafe, in dollars?"),
        (
            ("u=a*p", "teas bring {}."),
            ("v=b*q", "cakes bring {}."),
            ("w=c*s", "soups bring {}."),
            ("x=u+v", "teas and cakes make {}."),
            ("y=x+w", "all make {}."),
            ("z=y-t", "{} dollars are left."),
        ),
    ),
    Story(
        "orchard",
        {"a": (3, 12), "b": (3, 12), "k": (5, 20), "c": (10, 60, 5), "d": (2, 4)},
        (
            (
                "an orchard has {a} rows of {b} trees, and each tree gives {k} baskets.",
                "{a} rows of {b} trees stand in an orchard; each gives {k} baskets.",
            ),
            (
                "{A} sells {c} baskets and gets ${d} for each of the others from {B}.",
                "{c} baskets are kept; for each of the others {A} gets ${d}.",
            ),
        ),
        ("How many dollars does {B} pay?", "How much does {A} get for the others, in dollars?"),
        (
            ("p=a*b", "there are {} trees."),
            ("q=p*k", "they give {} baskets."),
            ("s=q-c", "the others are {}."),
            ("r=s*d", "they bring {} dollars."),
        ),
    ),
    Story(
        "average",
        {"a": (5, 60), "b": (5, 60), "c": (5, 60), "d": (2, 15)},
        (
            ("on three days {A} sells {a}, {b} and {c} {goods}.", "{A} makes {a}, {b} and {c} {goods} on three days."),
            ("{B} makes {d} more a day than {A} does on average.", "each day {B} has {d} more than {A}'s average."),
        ),
        ("How many does {B} have a day?", "What is {B}'s number for one day?"),
        (
            ("p=a+b", "two days make {}."),
            ("q=p+c", "three days make {}."),
            ("s=q/3", "the average is {}."),
            ("r=s+d", "{B} has {}."),
        ),
    ),
    Story(
        "workers",
        {"w": (2, 8), "h": (2, 9), "k": (2, 6), "n": "w*h*k", "v": (2, 5)},
        (
            ("{w} workers lay {k} {goods} an hour each.", "each of {w} workers places {k} {goods} in one hour."),
            (
                "the job is {n} {goods}, and they rest {v} hours in between.",
                "{n} {goods} are needed, and there is a break of {v} hours.",
            ),
        ),
        ("How many hours pass until the job is done?", "After how many hours are they done?"),
        (
            ("p=w*k", "together they do {} an hour."),
            ("q=n/p", "the work takes {} hours."),
            ("r=q+v", "with the break {} hours."),
        ),
    ),
    Story(
        "stadium",
        {"a": (1200, 6000, 50), "b": (150, 900, 50), "c": (100, 800, 50), "p": (5, 60, 5)},
        (
            ("a stadium has {a} seats.", "{a} people can sit in a stadium."),
            (
                "{b} seats are kept free, and {c} are sold to a club.",
                "a club takes {c} of the seats, and {b} must stay empty.",
            ),
            ("{p} of the tickets for the others are given away.", "of the others, {p} are free for helpers."),
        ),
        ("How many tickets can still be sold?", "How many seats are left to sell?"),
        (("u=b+c", "{} seats are gone."), ("v=a-u", "{} are left."), ("r=v-p", "{} can be sold.")),
    ),
    Story(
        "town",
        {"a": (1000, 5000, 10), "b": (20, 90, 5), "n": (2, 6), "c": (100, 900, 10)},
        (
            ("a town has {a} people.", "{a} people live in a town."),
            ("for {n} years, {b} people move there every year.", "every year {b} more come, {n} years long."),
            ("then {c} leave.", "after that {c} people move away."),
        ),
        ("How many people live there now?", "How many people does the town have now?"),
        (("p=b*n", "{} people come."), ("q=a+p", "then there are {}."), ("r=q-c", "now there are {}.")),
    ),
    Story(
        "school_trip",
        {"c": (2, 6), "k": (15, 30), "t": (2, 9), "p": (3, 12), "f": (50, 200, 10), "g": (10, 90, 10)},
        (
            (
                "{c} classes of {k} children and {t} teachers go on a trip.",
                "on a trip go {t} teachers and {c} classes with {k} children each.",
            ),
            ("each person pays ${p} for the museum.", "the museum costs ${p} a person."),
            (
                "the bus costs ${f}, but the school pays ${g} of all.",
                "${f} is the price of the bus, and the school gives ${g}.",
            ),
        ),
        ("How many dollars are still to be paid?", "How much do they pay themselves, in dollars?"),
        (
            ("u=c*k", "there are {} children."),
            ("v=u+t", "with teachers {} people."),
            ("w=v*p", "the museum costs {}."),
            ("x=w+f", "with the bus {}."),
            ("r=x-g", "they pay {} dollars."),
        ),
    ),
    Story(
        "bakery",
        {"a": (3, 9), "b": (6, 20), "c": (2, 8), "d": (5, 15), "e": (5, 40), "p": (2, 5)},
        (
            (
                "a bakery fills {a} trays with {b} {food} and {c} trays with {d}.",
                "{A} bakes {a} trays of {b} {food} and {c} trays of {d}.",
            ),
            ("{e} are burnt.", "{e} of them fall down."),
            ("all others are sold for ${p} each.", "people buy all the rest at ${p} each."),
        ),
        ("How many dollars come in?", "How much is earned, in dollars?"),
        (
            ("u=a*b", "the first trays hold {}."),
            ("v=c*d", "the others hold {}."),
            ("w=u+v", "together {}."),
            ("x=w-e", "{} are sold."),
            ("r=x*p", "they bring {} dollars."),
        ),
    ),
)
