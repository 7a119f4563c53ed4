"""Stories for `word_problems`: home and free time, then shops, roads and teams. That module explains the notation."""

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
shopping: a=2..12, p=2..15, b=2..9, q=3..20
  {A} buys {a} {goods} for ${p} each. | {A} pays ${p} for each of {a} {goods}.
  {he} also buys {b} {other} for ${q} each. | {b} {other} at ${q} each are on {his} list too.
  ? How many dollars does {he} pay? | How much does {A} spend, in dollars?
  > the {goods} cost {u=a*p} dollars. > the {other} cost {v=b*q}. > {he} pays {r=u+v} dollars.
change: a=2..9, p=2..11, b=2..5, q=3..15, m=50..200 by 50
  {A} takes {a} {goods} at ${p} and {b} {other} at ${q}.
  | {a} {goods} cost ${p} each, {b} {other} cost ${q} each; {A} takes all.
  {he} pays with ${m}. | {he} hands over ${m}.
  ? How many dollars of change does {he} get? | How much change is that, in dollars?
  > the {goods} cost {u=a*p}. > the {other} cost {v=b*q}. > together {w=u+v}. > the change is {r=m-w} dollars.
wage: h=3..9, w=8..25, d=2..6, t=5..40
  {A} works {h} hours a day and earns ${w} an hour. | for one hour of work {A} gets ${w}; {he} works {h} hours a day.
  {he} works {d} days and pays ${t} for the train. | after {d} such days {he} spends ${t} on a ticket.
  ? How many dollars are left? | How much of the money is left, in dollars?
  > a day brings {p=h*w} dollars. > all days bring {q=p*d}. > {r=q-t} dollars are left.
overtime: h=10..40, w=8..20, o=2..9, e=2..8
  {A} earns ${w} an hour for {h} hours. | for {h} hours of work {A} is paid ${w} each.
  for {o} extra hours {he} gets ${e} more per hour. | then {he} works {o} extra hours, paid ${e} an hour better.
  ? How many dollars does {A} earn? | What is {his} pay in dollars?
  > normal hours bring {p=w*h}. > an extra hour brings {x=w+e}. > extra hours bring {q=x*o}. > in all {r=p+q} dollars.
farm: a=3..40, b=3..60
  {A}'s farm has {a} cows and {b} hens. | on a farm there are {b} hens and {a} cows.
  ? How many legs do the animals have? | How many legs are there on the farm?
  > the cows have {p=a*4} legs. > the hens have {q=b*2}. > in all {r=p+q} legs.
harvest: t=3..20, k=10..50, c=5..40
  {A} picks {k} {fruit} from each of {t} trees. | each of {t} trees gives {A} {k} {fruit}.
  {c} are rotten. | {c} of them have to be thrown out.
  ? How many good ones does {A} have? | How many {fruit} can {he} sell?
  > {he} picks {p=t*k} {fruit}. > {r=p-c} are good.
crates: b=4..12, r=3..20, c=5..40, n=b*r, a=n+c
  {A} has {a} {goods} to pack. | a shop receives {a} {goods}.
  first {c} are sold, then the rest goes into boxes of {b}. | {c} go to {B}; all others are put into boxes of {b}.
  ? How many boxes are filled? | How many boxes does it take?
  > {p=a-c} {goods} are left. > it takes {s=p/b} boxes.
trip: v=40..110 by 5, h=2..6, w=30..90 by 5, k=2..5
  {A} drives {h} hours at {v} miles an hour. | for {h} hours {A} goes {v} miles an hour.
  then {he} drives {k} hours at {w} miles an hour. | after lunch it is {k} hours at {w} miles an hour.
  ? How many miles does {he} drive? | How far does {A} get, in miles?
  > first {p=v*h} miles. > then {q=w*k} miles. > in all {r=p+q} miles.
trip_left: v=40..90 by 5, h=2..5, d=300..900 by 10, s=10..60 by 5
  the way to the sea is {d} miles. | {A} wants to travel {d} miles.
  {A} drives {h} hours at {v} miles an hour, and then {s} miles more.
  | {he} does {v} miles an hour for {h} hours, and later {s} miles.
  ? How many miles are still to go? | How many miles are left?
  > first {p=v*h} miles. > so far {q=p+s}. > {r=d-q} miles are left.
bus: a=10..50, b=3..20, c=2..25, d=2..20, e=2..15
  a bus starts with {a} people. | {a} people are on a bus.
  at the first stop {b} get off and {c} get on. | first {b} leave it and {c} come in.
  at the next stop {d} get off and {e} get on. | then {d} leave and {e} come in.
  ? How many people are on the bus now? | How many people ride on?
  > {p=a-b} stay. > then there are {q=p+c}. > {s=q-d} stay. > now there are {r=s+e}.
factory: m=2..9, k=12..60, h=2..8, b=5..80
  a factory has {m} machines that each make {k} {goods} an hour. | each of {m} machines makes {k} {goods} in an hour.
  they run {h} hours, and {b} of the {goods} are broken. | after {h} hours {A} finds {b} broken ones.
  ? How many good {goods} were made? | How many {goods} are fine?
  > an hour gives {p=m*k} {goods}. > all hours give {q=p*h}. > {r=q-b} are fine.
discount: p=20..200 by 20, d=10..50 by 10, n=2..6
  a jacket costs ${p}, and today it is {d}% off. | {A} likes a coat for ${p} that is {d}% cheaper today.
  {A} buys {n} of them. | {he} takes {n}.
  ? How many dollars does {A} pay? | What is the price of all, in dollars?
  > {u=p*d/100} dollars off. > one costs {v=p-u}. > {he} pays {r=v*n} dollars.
percent_class: s=20..200 by 20, d=10..90 by 10, k=2..9
  a school has {s} children, and {d}% of them come by bus. | {d}% of the {s} children at a school take the bus.
  of the others, {k} come by car and the rest walk. | {k} of the others are driven; everybody else walks.
  ? How many children walk? | How many of them walk to school?
  > {u=s*d/100} take the bus. > {v=s-u} do not. > {r=v-k} walk.
profit: n=5..40, c=2..9, e=2..9, f=5..30, s=c+e
  {A} buys {n} {goods} at ${c} and sells them at ${s} each.
  | {n} {goods} were bought by {A} for ${c} each and sold for ${s} each.
  the market stall costs {him} ${f}. | {he} pays ${f} for the table.
  ? How many dollars does {he} gain? | What is the profit in dollars?
  > each one brings {p=s-c}. > all bring {q=n*p}. > the profit is {r=q-f} dollars.
tickets: a=10..90, p=6..15, b=5..60, q=2..5
  a theatre sells {a} tickets for adults at ${p} each. | {a} adults buy tickets at ${p}.
  {b} tickets for children cost ${q} each. | {b} children pay ${q} each.
  ? How many dollars come in? | How much money is taken, in dollars?
  > adults pay {u=a*p}. > children pay {v=b*q}. > in all {r=u+v} dollars.
library: s=3..12, b=10..40, o=5..90, n=4..50
  {A} fills {s} shelves with {b} books each. | there are {s} shelves of {b} books.
  {o} books are lent out and {n} new ones arrive. | then {n} new books come and {o} are lent.
  ? How many books are on the shelves? | How many books stand there now?
  > at first {p=s*b} books. > with the new ones {q=p+n}. > now {r=q-o} books.
rope: k=2..9, l=3..25, c=5..60, n=k*l, a=n+c
  {A} has a rope of {a} meters and cuts off {c} meters. | from a rope of {a} meters {A} uses {c}.
  the rest is cut into pieces of {l} meters. | {he} cuts what is left into pieces {l} meters long.
  ? How many pieces are there? | How many pieces does {he} get?
  > {p=a-c} meters are left. > that makes {r=p/l} pieces.
fence: a=5..40, b=3..30, c=2..9
  {A} builds a fence around a field {a} meters long and {b} meters wide. | a field of {a} by {b} meters gets a fence.
  one meter costs ${c}. | {he} pays ${c} for each meter.
  ? How many dollars does the fence cost? | What does the whole fence cost, in dollars?
  > length and width make {p=a+b}. > the fence is {q=p*2} meters. > it costs {r=q*c} dollars.
paint: a=3..15, b=2..10, n=2..4, d=2..15
  a wall is {a} meters long and {b} meters high. | {A} paints walls that are {a} meters by {b} meters.
  there are {n} such walls, less {d} square meters for windows.
  | {he} has {n} of them, but {d} square meters are windows.
  ? How many square meters are painted? | How large is the area to paint, in square meters?
  > one wall has {p=a*b}. > all walls have {q=p*n}. > {r=q-d} are painted.
team: k=3..9, t=2..9, c=2..12, n=k*t, a=n-c
  {a} children want to play, and {c} more arrive. | to the {a} players come {c} more.
  they form teams of {k}, and every team needs 2 balls. | each team has {k} players and 2 balls.
  ? How many balls are needed? | How many balls do they use?
  > there are {p=a+c} players. > that makes {q=p/k} teams. > they need {r=q*2} balls.
water: a=200..900 by 10, r=5..30, m=3..15, d=20..90 by 5
  a tank holds {a} liters of water. | {A} has a tank with {a} liters.
  a pump takes out {r} liters a minute for {m} minutes. | for {m} minutes {r} liters run out each minute.
  then {d} liters of rain come in. | after that {he} pours in {d} liters.
  ? How many liters are in the tank? | How much water is there now, in liters?
  > {p=r*m} liters go out. > {q=a-p} are left. > now there are {s=q+d} liters.
delivery: t=2..8, b=5..25, w=2..12, e=10..60 by 5
  {t} trucks carry {b} boxes each. | {A} loads {b} boxes onto each of {t} trucks.
  a box weighs {w} kilos. | every box has a weight of {w} kilos.
  there is also a machine of {e} kilos. | a crate of {e} kilos comes on top.
  ? How many kilos are carried? | What is the whole weight in kilos?
  > there are {p=t*b} boxes. > they weigh {q=p*w} kilos. > in all {r=q+e} kilos.
cafe: a=3..20, p=2..6, b=2..15, q=3..9, c=2..9, s=2..8, t=2..12
  {A}'s cafe sells {a} teas at ${p} and {b} cakes at ${q}. | in a cafe {a} teas cost ${p} each and {b} cakes ${q} each.
  {c} soups at ${s} are sold as well. | guests also order {c} soups for ${s} each.
  {t} dollars go to the cook. | the cook gets {t} dollars of it.
  ? How many dollars are left? | How much stays in the cafe, in dollars?
  > teas bring {u=a*p}. > cakes bring {v=b*q}. > soups bring {w=c*s}. > teas and cakes make {x=u+v}. > all make {y=x+w}.
  > {z=y-t} dollars are left.
orchard: a=3..12, b=3..12, k=5..20, c=10..60 by 5, d=2..4
  an orchard has {a} rows of {b} trees, and each tree gives {k} baskets.
  | {a} rows of {b} trees stand in an orchard; each gives {k} baskets.
  {A} sells {c} baskets and gets ${d} for each of the others from {B}.
  | {c} baskets are kept; for each of the others {A} gets ${d}.
  ? How many dollars does {B} pay? | How much does {A} get for the others, in dollars?
  > there are {p=a*b} trees. > they give {q=p*k} baskets. > the others are {s=q-c}. > they bring {r=s*d} dollars.
average: a=5..60, b=5..60, c=5..60, d=2..15
  on three days {A} sells {a}, {b} and {c} {goods}. | {A} makes {a}, {b} and {c} {goods} on three days.
  {B} makes {d} more a day than {A} does on average. | each day {B} has {d} more than {A}'s average.
  ? How many does {B} have a day? | What is {B}'s number for one day?
  > two days make {p=a+b}. > three days make {q=p+c}. > the average is {s=q/3}. > {B} has {r=s+d}.
workers: w=2..8, h=2..9, k=2..6, n=w*h*k, v=2..5
  {w} workers lay {k} {goods} an hour each. | each of {w} workers places {k} {goods} in one hour.
  the job is {n} {goods}, and they rest {v} hours in between.
  | {n} {goods} are needed, and there is a break of {v} hours.
  ? How many hours pass until the job is done? | After how many hours are they done?
  > together they do {p=w*k} an hour. > the work takes {q=n/p} hours. > with the break {r=q+v} hours.
stadium: a=1200..6000 by 50, b=150..900 by 50, c=100..800 by 50, p=5..60 by 5
  a stadium has {a} seats. | {a} people can sit in a stadium.
  {b} seats are kept free, and {c} are sold to a club. | a club takes {c} of the seats, and {b} must stay empty.
  {p} of the tickets for the others are given away. | of the others, {p} are free for helpers.
  ? How many tickets can still be sold? | How many seats are left to sell?
  > {u=b+c} seats are gone. > {v=a-u} are left. > {r=v-p} can be sold.
town: a=1000..5000 by 10, b=20..90 by 5, n=2..6, c=100..900 by 10
  a town has {a} people. | {a} people live in a town.
  for {n} years, {b} people move there every year. | every year {b} more come, {n} years long.
  then {c} leave. | after that {c} people move away.
  ? How many people live there now? | How many people does the town have now?
  > {p=b*n} people come. > then there are {q=a+p}. > now there are {r=q-c}.
school_trip: c=2..6, k=15..30, t=2..9, p=3..12, f=50..200 by 10, g=10..90 by 10
  {c} classes of {k} children and {t} teachers go on a trip.
  | on a trip go {t} teachers and {c} classes with {k} children each.
  each person pays ${p} for the museum. | the museum costs ${p} a person.
  the bus costs ${f}, but the school pays ${g} of all. | ${f} is the price of the bus, and the school gives ${g}.
  ? How many dollars are still to be paid? | How much do they pay themselves, in dollars?
  > there are {u=c*k} children. > with teachers {v=u+t} people. > the museum costs {w=v*p}. > with the bus {x=w+f}.
  > they pay {r=x-g} dollars.
bakery: a=3..9, b=6..20, c=2..8, d=5..15, e=5..40, p=2..5
  a bakery fills {a} trays with {b} {food} and {c} trays with {d}.
  | {A} bakes {a} trays of {b} {food} and {c} trays of {d}.
  {e} are burnt. | {e} of them fall down.
  all others are sold for ${p} each. | people buy all the rest at ${p} each.
  ? How many dollars come in? | How much is earned, in dollars?
  > the first trays hold {u=a*b}. > the others hold {v=c*d}. > together {w=u+v}. > {x=w-e} are sold.
  > they bring {r=x*p} dollars.
"""
