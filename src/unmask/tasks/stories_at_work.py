"""Stories for `word_problems` from shops, farms, factories and roads. See `story.py` for the notation."""

from __future__ import annotations

from unmask.tasks.story import Story

STORIES = (
    Story(
        "shopping",
        {"a": (2, 12), "p": (2, 15), "b": (2, 9), "q": (3, 20)},
        (
            ("{A} buys {a} {goods} for ${p} each.", "{A} pays ${p} for each of {a} {goods}."),
            ("{he} also buys {b} {other} for ${q} each.", "{b} {other} at ${q} each are on {his} list too."),
        ),
        ("How many dollars does {he} pay?", "How much does {A} spend, in dollars?"),
        (
            ("u=a*p", "the {goods} cost {} dollars."),
            ("v=b*q", "the {other} cost {}."),
            ("r=u+v", "{he} pays {} dollars."),
        ),
    ),
    Story(
        "change",
        {"a": (2, 9), "p": (2, 11), "b": (2, 5), "q": (3, 15), "m": (50, 200, 50)},
        (
            (
                "{A} takes {a} {goods} at ${p} and {b} {other} at ${q}.",
                "{a} {goods} cost ${p} each, {b} {other} cost ${q} each; {A} takes all.",
            ),
            ("{he} pays with ${m}.", "{he} hands over ${m}."),
        ),
        ("How many dollars of change does {he} get?", "How much change is that, in dollars?"),
        (
            ("u=a*p", "the {goods} cost {}."),
            ("v=b*q", "the {other} cost {}."),
            ("w=u+v", "together {}."),
            ("r=m-w", "the change is {} dollars."),
        ),
    ),
    Story(
        "wage",
        {"h": (3, 9), "w": (8, 25), "d": (2, 6), "t": (5, 40)},
        (
            (
                "{A} works {h} hours a day and earns ${w} an hour.",
                "for one hour of work {A} gets ${w}; {he} works {h} hours a day.",
            ),
            ("{he} works {d} days and pays ${t} for the train.", "after {d} such days {he} spends ${t} on a ticket."),
        ),
        ("How many dollars are left?", "How much of the money is left, in dollars?"),
        (("p=h*w", "a day brings {} dollars."), ("q=p*d", "all days bring {}."), ("r=q-t", "{} dollars are left.")),
    ),
    Story(
        "overtime",
        {"h": (10, 40), "w": (8, 20), "o": (2, 9), "e": (2, 8)},
        (
            ("{A} earns ${w} an hour for {h} hours.", "for {h} hours of work {A} is paid ${w} each."),
            (
                "for {o} extra hours {he} gets ${e} more per hour.",
                "then {he} works {o} extra hours, paid ${e} an hour better.",
            ),
        ),
        ("How many dollars does {A} earn?", "What is {his} pay in dollars?"),
        (
            ("p=w*h", "normal hours bring {}."),
            ("x=w+e", "an extra hour brings {}."),
            ("q=x*o", "extra hours bring {}."),
            ("r=p+q", "in all {} dollars."),
        ),
    ),
    Story(
        "farm",
        {"a": (3, 40), "b": (3, 60)},
        (("{A}'s farm has {a} cows and {b} hens.", "on a farm there are {b} hens and {a} cows."),),
        ("How many legs do the animals have?", "How many legs are there on the farm?"),
        (("p=a*4", "the cows have {} legs."), ("q=b*2", "the hens have {}."), ("r=p+q", "in all {} legs.")),
    ),
    Story(
        "harvest",
        {"t": (3, 20), "k": (10, 50), "c": (5, 40)},
        (
            ("{A} picks {k} {fruit} from each of {t} trees.", "each of {t} trees gives {A} {k} {fruit}."),
            ("{c} are rotten.", "{c} of them have to be thrown out."),
        ),
        ("How many good ones does {A} have?", "How many {fruit} can {he} sell?"),
        (("p=t*k", "{he} picks {} {fruit}."), ("r=p-c", "{} are good.")),
    ),
    Story(
        "crates",
        {"b": (4, 12), "r": (3, 20), "c": (5, 40), "n": "b*r", "a": "n+c"},
        (
            ("{A} has {a} {goods} to pack.", "a shop receives {a} {goods}."),
            (
                "first {c} are sold, then the rest goes into boxes of {b}.",
                "{c} go to {B}; all others are put into boxes of {b}.",
            ),
        ),
        ("How many boxes are filled?", "How many boxes does it take?"),
        (("p=a-c", "{} {goods} are left."), ("s=p/b", "it takes {} boxes.")),
    ),
    Story(
        "trip",
        {"v": (40, 110, 5), "h": (2, 6), "w": (30, 90, 5), "k": (2, 5)},
        (
            ("{A} drives {h} hours at {v} miles an hour.", "for {h} hours {A} goes {v} miles an hour."),
            ("then {he} drives {k} hours at {w} miles an hour.", "after lunch it is {k} hours at {w} miles an hour."),
        ),
        ("How many miles does {he} drive?", "How far does {A} get, in miles?"),
        (("p=v*h", "first {} miles."), ("q=w*k", "then {} miles."), ("r=p+q", "in all {} miles.")),
    ),
    Story(
        "trip_left",
        {"v": (40, 90, 5), "h": (2, 5), "d": (300, 900, 10), "s": (10, 60, 5)},
        (
            ("the way to the sea is {d} miles.", "{A} wants to travel {d} miles."),
            (
                "{A} drives {h} hours at {v} miles an hour, and then {s} miles more.",
                "{he} does {v} miles an hour for {h} hours, and later {s} miles.",
            ),
        ),
        ("How many miles are still to go?", "How many miles are left?"),
        (("p=v*h", "first {} miles."), ("q=p+s", "so far {}."), ("r=d-q", "{} miles are left.")),
    ),
    Story(
        "bus",
        {"a": (10, 50), "b": (3, 20), "c": (2, 25), "d": (2, 20), "e": (2, 15)},
        (
            ("a bus starts with {a} people.", "{a} people are on a bus."),
            ("at the first stop {b} get off and {c} get on.", "first {b} leave it and {c} come in."),
            ("at the next stop {d} get off and {e} get on.", "then {d} leave and {e} come in."),
        ),
        ("How many people are on the bus now?", "How many people ride on?"),
        (("p=a-b", "{} stay."), ("q=p+c", "then there are {}."), ("s=q-d", "{} stay."), ("r=s+e", "now there are {}.")),
    ),
    Story(
        "factory",
        {"m": (2, 9), "k": (12, 60), "h": (2, 8), "b": (5, 80)},
        (
            (
                "a factory has {m} machines that each make {k} {goods} an hour.",
                "each of {m} machines makes {k} {goods} in an hour.",
            ),
            ("they run {h} hours, and {b} of the {goods} are broken.", "after {h} hours {A} finds {b} broken ones."),
        ),
        ("How many good {goods} were made?", "How many {goods} are fine?"),
        (("p=m*k", "an hour gives {} {goods}."), ("q=p*h", "all hours give {}."), ("r=q-b", "{} are fine.")),
    ),
    Story(
        "discount",
        {"p": (20, 200, 20), "d": (10, 50, 10), "n": (2, 6)},
        (
            ("a jacket costs ${p}, and today it is {d}% off.", "{A} likes a coat for ${p} that is {d}% cheaper today."),
            ("{A} buys {n} of them.", "{he} takes {n}."),
        ),
        ("How many dollars does {A} pay?", "What is the price of all, in dollars?"),
        (("u=p*d/100", "{} dollars off."), ("v=p-u", "one costs {}."), ("r=v*n", "{he} pays {} dollars.")),
    ),
    Story(
        "percent_class",
        {"s": (20, 200, 20), "d": (10, 90, 10), "k": (2, 9)},
        (
            (
                "a school has {s} children, and {d}% of them come by bus.",
                "{d}% of the {s} children at a school take the bus.",
            ),
            (
                "of the others, {k} come by car and the rest walk.",
                "{k} of the others are driven; everybody else walks.",
            ),
        ),
        ("How many children walk?", "How many of them walk to school?"),
        (("u=s*d/100", "{} take the bus."), ("v=s-u", "{} do not."), ("r=v-k", "{} walk.")),
    ),
    Story(
        "profit",
        {"n": (5, 40), "c": (2, 9), "e": (2, 9), "f": (5, 30), "s": "c+e"},
        (
            (
                "{A} buys {n} {goods} at ${c} and sells them at ${s} each.",
                "{n} {goods} were bought by {A} for ${c} each and sold for ${s} each.",
            ),
            ("the market stall costs {him} ${f}.", "{he} pays ${f} for the table."),
        ),
        ("How many dollars does {he} gain?", "What is the profit in dollars?"),
        (("p=s-c", "each one brings {}."), ("q=n*p", "all bring {}."), ("r=q-f", "the profit is {} dollars.")),
    ),
    Story(
        "tickets",
        {"a": (10, 90), "p": (6, 15), "b": (5, 60), "q": (2, 5)},
        (
            ("a theatre sells {a} tickets for adults at ${p} each.", "{a} adults buy tickets at ${p}."),
            ("{b} tickets for children cost ${q} each.", "{b} children pay ${q} each."),
        ),
        ("How many dollars come in?", "How much money is taken, in dollars?"),
        (("u=a*p", "adults pay {}."), ("v=b*q", "children pay {}."), ("r=u+v", "in all {} dollars.")),
    ),
)
