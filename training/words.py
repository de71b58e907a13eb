"""The words that documents are made of. Each becomes a single token; adding a word means training again."""

# ruff: noqa: SIM905 (a list of quoted words is harder to read)

COLOURS = "blue red green black white grey brown pink purple orange yellow golden silver beige navy olive".split()
OBJECTS = (
    "lamp chair table desk mirror clock vase basket ladder bucket rope tent kettle pan bowl cup plate jar "
    "bottle drum guitar violin piano radio camera printer keyboard monitor cable battery hammer drill saw "
    "wrench brush shovel rake hose fan heater stove fridge sofa shelf carpet curtain pillow blanket towel "
    "jacket coat scarf hat glove boot belt wallet umbrella bicycle helmet"
).split()
VEHICLES = "train bus ferry tram coach shuttle".split()
CITIES = (
    "Oslo Paris Rome Berlin Madrid Lisbon Vienna Prague Dublin Athens Warsaw Zurich Geneva Milan Turin Naples "
    "Venice Munich Hamburg Cologne Lyon Nice Seville Porto Bergen Malmo Turku Riga Vilnius Tallinn Krakow "
    "Gdansk Bilbao Toledo Leeds York Bath Oxford Cardiff Galway Cork Ghent Bruges Delft Leiden Basel Bern Graz "
    "Linz Zagreb Split Sofia Varna"
).split()
FIRST_NAMES = (
    "Anna Ben Clara David Emma Felix Grace Hugo Ines Jonas Karin Leo Maria Nils Olga Paul Rosa Simon Tara "
    "Victor Wanda Yusuf Zoe Amir Bianca Carlos Diana Erik Fatima Georg Helen Ivan Julia Kenji Laura Marco Nina "
    "Oscar Petra Quentin"
).split()
LAST_NAMES = (
    "Berg Klein Moser Lopez Novak Silva Rossi Weber Fischer Larsen Hansen Dubois Moreau Costa Santos Kowal "
    "Petrov Ivanov Tanaka Sato Kimura Chen Wang Singh Patel Khan Haddad Okafor Mensah Diallo Murphy Walsh "
    "Brown Taylor Wilson Clarke"
).split()
MACHINES = "pump valve motor boiler turbine sensor crane mixer conveyor furnace compressor generator".split()
STATES = (
    "running stopped overheating leaking idle offline ready blocked vibrating cooling charging starting "
    "testing cleaning waiting repaired locked drained paused empty"
).split()
