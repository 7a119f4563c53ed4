"""Stories for `word_problems` from home, school and free time. `word_problems.py` explains the notation."""

STORIES = """
bags: a=2..12, b=3..15, c=2..20
  {A} buys {a} bags with {b} {goods} in each. | There are {b} {goods} in a bag, and {A} buys {a} bags.
  {he} gives {c} of them to {B}. | then {B} gets {c} {goods} from {him}.
  ? How many {goods} does {A} have left? | How many {goods} are left for {A}?
  > {A} buys {p=a*b} {goods}. > {r=p-c} are left.
collection: a=12..180, b=5..90, c=3..60
  {A} has {a} {goods} in a collection. | {A} collects {goods} and has {a} so far.
  {B} gives {him} {b} more. | on {his} birthday {he} gets {b} more. | {he} finds another {b} in a drawer.
  later {he} sells {c}. | then {he} loses {c} of them. | {he} trades {c} of them away.
  ? How many {goods} does {A} have now? | How large is the collection now?
  > with the new ones there are {p=a+b}. > now there are {r=p-c}.
reading: b=6..40, d=2..12, m=10..150
  {A} reads {b} pages of a book every day. | every day {A} reads {b} pages.
  after {d} days there are still {m} pages to go. | {he} did so for {d} days, and {m} pages remain.
  ? How many pages does the book have? | How long is the book, in pages?
  > {he} read {p=b*d} pages. > the book has {r=p+m} pages.
twice: a=4..60, k=2..5
  {A} has {a} {goods}. | in {A}'s room there are {a} {goods}.
  {B} has {k} times as many. | {B} owns {k} times that number.
  ? How many {goods} do they have together? | How many {goods} do {A} and {B} have in all?
  > {B} has {p=a*k} {goods}. > together they have {r=a+p}.
more_than: a=8..90, b=3..40, c=2..30
  {A} picked {a} {goods}. | on Monday {A} counted {a} {goods}.
  {B} picked {b} more than {A}. | {B} got {b} more than {he} did.
  their friend has {c} fewer than {B}. | a third child has {c} fewer than {B}.
  ? How many {goods} do all three have together? | How many is that in total for the three of them?
  > {B} has {p=a+b}. > the friend has {q=p-c}. > {A} and {B} have {r=a+p}. > all three have {s=r+q}.
savings: w=3..25, n=4..20, g=10..80 by 5, c=20..150 by 5
  {A} saves ${w} every week for {n} weeks. | for {n} weeks {A} puts ${w} a week into a jar.
  {his} uncle adds ${g}. | {B} gives {him} another ${g}.
  then {he} buys a bike helmet for ${c}. | {he} spends ${c} on a present.
  ? How many dollars are left? | How much money does {A} have left?
  > {A} saves {p=w*n} dollars. > with the gift it is {q=p+g}. > {r=q-c} dollars are left.
share: k=2..9, q=3..30, a=2..40, t=k*q, b=t-a
  {A} has {a} {goods} and {B} has {b}. | there are {a} {goods} in one bag and {b} in another.
  they put them together and share them equally among {k} children. | all are divided equally between {k} friends.
  ? How many {goods} does each one get? | How many does every child receive?
  > there are {p=a+b} {goods}. > each one gets {r=p/k}.
share_rest: k=2..8, q=3..25, c=2..30, a=k*q+c
  {A} bakes {a} {food}. | {A} brings {a} {food} to the party.
  {c} of them are bad and are thrown away. | {he} keeps {c} for {his} family.
  the rest is packed into {k} equal boxes. | {he} splits the others evenly over {k} plates.
  ? How many {food} are in one of them? | How many {food} go into each?
  > {p=a-c} {food} are left. > each holds {r=p/k}.
recipe: e=2..6, n=3..12, h=4..30, p=2..9
  one cake needs {e} eggs, and {A} bakes {n} cakes. | {A} bakes {n} cakes with {e} eggs in each.
  {he} has {p} boxes of {h} eggs. | at home there are {p} cartons, each with {h} eggs.
  ? How many eggs are left over? | How many eggs remain?
  > {he} needs {u=e*n} eggs. > {he} has {v=p*h} eggs. > {r=v-u} eggs are left.
ages: a=4..15, k=2..5, y=2..20
  {A} is {a} years old. | this year {A} turns {a}.
  {his} aunt is {k} times as old. | {his} neighbour is {k} times {his} age.
  ? How old will that person be in {y} years? | What is the age of the older one {y} years from now?
  > now the older one is {p=a*k}. > then it will be {r=p+y}.
age_sum: a=5..40, b=2..15, c=2..12
  {A} is {a}. | {A} is {a} years old.
  {B} is {b} years older than {A}. | {B} was born {b} years before {him}.
  their cousin is {c} years older than {B}. | {B}'s brother is {c} years older than {B}.
  ? What do their three ages add up to? | How old are the three together?
  > {B} is {p=a+b}. > the third is {q=p+c}. > the first two make {r=a+p}. > in all {s=r+q}.
steps_walk: m=200..900 by 50, d=2..6, e=100..800 by 50
  {A} walks {m} meters to school and the same way back.
  | school is {m} meters from {A}'s home; {he} walks there and back.
  {he} does this on {d} days. | this happens {d} times a week.
  on Sunday {he} walks another {e} meters. | besides, {he} walks {e} meters with the dog.
  ? How many meters does {A} walk in all? | What is the whole distance in meters?
  > one day is {p=m*2} meters. > the school days make {q=p*d}. > in all it is {r=q+e} meters.
homework: a=2..9, b=3..12, c=2..6, d=4..15
  {A} solves {a} problems that take {b} minutes each. | each of {a} problems takes {A} {b} minutes.
  then {he} reads {c} stories of {d} minutes each. | {he} also reads {c} texts, {d} minutes for each.
  ? How many minutes does {A} work? | How long does it all take, in minutes?
  > the problems take {p=a*b} minutes. > reading takes {q=c*d}. > in all it takes {r=p+q} minutes.
jar: a=40..200, b=5..40, c=4..30, d=5..60
  a jar holds {a} {goods}. | there are {a} {goods} in a jar.
  {A} takes out {b} and {B} takes out {c}. | {b} are taken by {A}, and {c} by {B}.
  then {d} new ones are put in. | at night somebody adds {d}.
  ? How many {goods} are in the jar now? | How many does the jar hold at the end?
  > {p=b+c} are taken. > {q=a-p} stay. > now there are {r=q+d}.
half: h=4..60, a=h*2, b=2..30
  {A} has {a} {goods}. | {a} {goods} belong to {A}.
  {he} gives half of them to {B}. | half of them go to {B}.
  then {he} loses {b}. | after that {he} breaks {b} of {his} own.
  ? How many {goods} does {A} have left? | How many are left for {A}?
  > half is {p=a/2}. > {r=p-b} are left.
third: h=4..40, a=h*3, b=2..40
  {A} has {a} {goods}. | there are {a} {goods} in {A}'s basket.
  a third of them are red and are given away. | {he} sells a third of them.
  {B} then brings {b} more. | {he} gets {b} new ones.
  ? How many {goods} does {A} have in the end? | How many {goods} are there now?
  > a third is {p=a/3}. > {q=a-p} stay. > in the end there are {r=q+b}.
game_points: a=3..15, b=2..10, c=2..12, d=5..15 by 5, e=2..25
  in a game {A} wins {a} rounds worth {b} points each. | {A} gets {b} points for each of {a} rounds.
  {he} also wins {c} rounds worth {d} points each. | then come {c} rounds with {d} points each.
  a mistake costs {him} {e} points. | at the end {e} points are taken away.
  ? How many points does {A} have? | What is {his} score?
  > first {p=a*b} points. > then {q=c*d} points. > together {s=p+q}. > {r=s-e} points remain.
rows_chairs: a=3..15, b=4..18, c=2..8, d=3..12
  in a hall there are {a} rows of {b} chairs. | a hall has {a} rows with {b} chairs in each.
  {A} adds {c} rows of {d} chairs. | {c} more rows with {d} chairs each are set up by {A}.
  ? How many chairs are there now? | How many people can sit?
  > first there are {p=a*b} chairs. > {q=c*d} are added. > now there are {r=p+q}.
album: p=4..20, s=3..9, c=2..10, e=3..12
  {A}'s album has {p} pages with room for {s} {goods} each. | each of the {p} pages of an album holds {s} {goods}.
  so far {he} has {c} packs of {e} {goods}. | {A} bought {c} packs with {e} {goods} in a pack.
  ? How many {goods} are missing to fill the album? | How many more does {he} need for a full album?
  > the album holds {u=p*s}. > {he} has {v=c*e}. > {r=u-v} are missing.
garden: a=3..12, b=4..15, c=2..25, k=2..6
  {A} plants {a} rows of {b} flowers. | there are {a} rows with {b} flowers in {A}'s garden.
  {c} of them do not grow. | snails eat {c} of them.
  each of the others has {k} blossoms. | every flower that is left has {k} blossoms.
  ? How many blossoms are there? | How many blossoms can {A} count?
  > {A} plants {p=a*b} flowers. > {q=p-c} are left. > they have {r=q*k} blossoms.
screen_time: a=15..60 by 5, d=2..6, b=30..120 by 10, e=20..90 by 5
  {A} practises the piano {a} minutes a day on {d} days. | on {d} days {A} plays the piano for {a} minutes.
  on Saturday {he} plays {b} minutes. | on the weekend {he} plays for {b} minutes more.
  {B} practises {e} minutes less than {he} does in all. | in the same week {B} plays {e} minutes less.
  ? How many minutes does {B} play? | How long does {B} practise, in minutes?
  > on those days {A} plays {p=a*d} minutes. > in all {q=p+b}. > {B} plays {r=q-e} minutes.
pairs: a=3..25, b=2..20, c=2..10
  {A} folds {a} pairs of socks and {b} single socks. | in a drawer of {A}'s are {a} pairs of socks and {b} single ones.
  {c} pairs get lost. | {he} gives {c} pairs to {B}.
  ? How many socks are left? | How many socks are there in the end?
  > {p=a-c} pairs are left. > that is {q=p*2} socks. > in the end there are {r=q+b}.
party: g=4..20, a=2..5, b=2..4, c=3..30
  {A} invites {g} guests. | {g} guests come to {A}'s party.
  each of them eats {a} {food} and drinks {b} cups of juice. | every guest gets {a} {food} and {b} cups of juice.
  {c} {food} are not eaten. | in the kitchen {c} more {food} are left.
  ? How many {food} were there at the start? | How many {food} had {A} made?
  > the guests eat {p=g*a} {food}. > there were {r=p+c}.
ladder: a=3..12, b=8..20, c=2..8
  a tower has {a} floors with {b} stairs each. | there are {b} stairs on each of the {a} floors of a tower.
  {A} climbs to the top, goes back down {c} stairs and rests. | {A} goes up all the way and then {c} stairs down again.
  ? On which stair does {he} stand? | How many stairs above the ground is {he} now?
  > the tower has {p=a*b} stairs. > {he} stands on stair {r=p-c}.
"""
