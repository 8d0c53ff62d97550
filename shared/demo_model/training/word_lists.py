"""The words that the synthetic chats are made of.

Of the open lists (NOUNS, NAMES, CITIES) each eighth word is held out: training never sees it as a value. The
closed lists are the same in training and outside it.
"""

HOLD_OUT_EVERY = 8


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words("""
apple river stone cloud tiger lamp bread piano window garden rocket silver candle forest bridge pencil
mirror orange button castle dragon feather guitar hammer island jacket kitten ladder magnet needle ocean
parrot quilt ribbon saddle tunnel umbrella violin walnut yogurt zebra anchor basket camera desert engine
falcon glove harbor iron jungle kettle lemon marble napkin olive pepper rabbit sugar tomato valley wagon
acorn beetle cherry donkey eagle finger ginger honey insect jewel kite lizard meadow nickel otter pillow
queen radish salmon turtle velvet whale barrel cactus dinner ember fossil goose helmet icicle juice koala
locket melon nutmeg onion pearl rice spider thunder urchin vase willow yarn arrow blanket copper diamond
eraser flute granite hotel igloo jasmine keyboard lantern muffin noodle oyster planet rainbow scarf teapot
uncle village winter bottle carpet drum elbow flag grape hill ink jelly knot leaf moon nest oak paper road
shell tree voice wheel badge cabin deck echo frost gate horse inlet jar king lake maple north opal pond
rope sand tower unit vine wood year zone amber birch coral daisy elm fern gold hazel ivory jade lilac mint
onyx pine rose sage tulip ash bear crow deer fox hawk lion mouse owl swan wolf bell book clock door fork
glass hat key map net pan ring ship tent wall yard bean corn date fig kiwi lime pear plum salt soup tea
milk cake pie egg nut fish ant bee cat dog hen pig cow bat bird frog seal shark snail squid trout field
storm rain snow wind fire earth light night star sun
""")

NAMES = _words("""
Zara Milo Nina Oscar Ruby Felix Clara Hugo Ivy Jonas Kira Leo Maya Noah Olga Pablo Rosa Simon Tara Uma
Victor Wendy Xena Yusuf Zoe Adam Bella Carlos Diana Erik Fiona George Hanna Igor Julia Kevin Laura Marco
Nadia Omar Petra Quinn Rita Sam Tina Ulf Vera Walter Yara Alan Bruno Celia David Elena Frank Greta Henry
Irene Jack Karen Liam Mona Nora Otto Paula Ralph Sofia Tom Ursula Viola Will Anna Ben Cora Dan Emma Fred
Gina Hal Ida Jim Kate Lars Mia Ned Olive Pia Rex Sue Ted Una Vic Wes Amy Bob Cleo Dora Ella Finn Gus Hope
Iris Joe Kim Lily Max Nick Opal Pete Rob Sara Theo Alice Peter John Mary James Linda Robert Susan Michael
Lisa William Karl Daniel Nancy Paul Mark Helen Steven Ruth Brian Sharon Chris Eva Tim Jane Eric Marta
Lukas Aisha Chen Wei Ravi Priya Kenji Yuki Amir Leila Diego Lucia Pierre Chloe Sven Astrid
""")

CITIES = _words("""
Oslo Lima Paris Rome Cairo Delhi Tokyo Berlin Madrid Vienna Prague Dublin Lisbon Athens Warsaw Zurich
Geneva Boston Denver Dallas Austin Miami Seattle Toronto Quito Bogota Havana Nairobi Lagos Accra Tunis
Dakar Seoul Osaka Manila Hanoi Jakarta Sydney Perth London Milan Turin Porto Seville Lyon Munich Hamburg
Bergen Malmo Helsinki Riga Vilnius Kyiv Sofia Zagreb Split Bern Basel Ghent Bruges Leeds York Bath Cork
Galway Chicago
""")

COLORS = _words(
    "red blue green yellow black white brown pink purple gray orange silver golden teal violet amber"
)
HOLDERS = _words("box bag jar drawer chest basket bowl cup")
THINGS = _words(
    "keys coins books apples stones pens cards shells nuts eggs stamps rings bells toys spoons maps"
)
PETS = _words("dog cat parrot horse rabbit hamster turtle goldfish")
FAVORITES = _words("color food animal city word number drink song")
SECRETS = _words("code pin password number")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
LOCKS = _words("wifi door office alarm garage safe bank phone")

# Common words, each one token after a space in most vocabularies trained on these chats.
EASY_WORDS = _words("""
red blue green black white dog cat cup box bag keys books pens cards apples coins stones shells nuts eggs
bells maps toys rings spoons stamps jar bowl chest drawer basket horse rabbit turtle parrot orange yellow
brown pink purple gray silver golden teal violet amber food drink song city animal color name code word
number
""")

# Made-up words are ONSET VOWEL CODA, once to three times.
ONSETS = _words("b c d f g h j k l m n p r s t v w z br cl dr fl gr kr pl st tr sh th ch")
VOWELS = _words("a e i o u a e i o u ai ee ou")
CODAS = ("", "", "", *_words("n r l s m t k x nd rt"))
