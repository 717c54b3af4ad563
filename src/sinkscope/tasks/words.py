"""The names and things that all kinds of problems speak of."""

NAMES = ("Ann", "Bob", "Cid", "Dan", "Eve", "Fay", "Gus", "Ida", "Leo", "Mia", "Sam", "Tom")
THINGS = ("apples", "books", "cards", "coins", "eggs", "keys", "pens", "shells")
COLOURS = ("red", "blue", "green", "black", "white", "pink", "grey", "gold")
