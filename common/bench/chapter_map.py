"""The map of the chapters: the main line, which a learner walks first, and the side roads that leave it.

It is a tree. Each chapter names its parent, the chapter that it improves on, and its road; chapters.json has both.
"""

MAIN = "main line"


class ChapterMap:
    """`chapters`: {id: Chapter} of book.py. One that chapters.json does not have yet is on no road."""

    def __init__(self, chapters):
        self.chapters = {identifier: chapter for identifier, chapter in chapters.items() if chapter.road}

    def __contains__(self, chapter):
        return chapter.id in self.chapters

    def parent(self, chapter):
        """None for the first, and for one whose parent is not there."""
        return self.chapters.get(chapter.parent)

    def children(self, chapter):
        return [child for child in self.chapters.values() if child.parent == chapter.id]

    def main_line(self):
        """In walking order: from the first chapter to a line's end, then from where another line begins."""
        firsts = [chapter for chapter in self.chapters.values() if chapter.road == MAIN and not self.parent(chapter)]
        line = [chapter for first in firsts for chapter in self.along(first)]
        later = [chapter for chapter in line if chapter.before in self.chapters]
        return [one for chapter in line if chapter not in later
                for one in (*(early for early in later if early.before == chapter.id), chapter)]

    def after(self, chapter):
        """The next chapter of the main line; None behind the last, and of a chapter that is not on it."""
        line = self.main_line()
        following = dict(zip((one.id for one in line), line[1:]))
        return following.get(chapter.id)

    def side_roads(self, chapter):
        """The chapters that leave a road at this one, or go on on its own side road."""
        return [child for child in self.children(chapter) if child.road != MAIN]

    def along(self, chapter):
        """A chapter and what follows it on its own road."""
        return [chapter, *(later for child in self.children(chapter) if child.road == chapter.road
                           for later in self.along(child))]

    def leaves_at(self, chapter):
        """The last chapter of the main line before this one of a side road; None where none is there."""
        while chapter and chapter.road != MAIN:
            chapter = self.parent(chapter)
        return chapter

    def roads(self):
        """{side road: its chapters}, each behind its parent."""
        roads = {}
        for chapter in self.chapters.values():
            parent = self.parent(chapter)
            if chapter.road != MAIN and not (parent and parent.road == chapter.road):
                roads.setdefault(chapter.road, []).extend(self.along(chapter))
        return roads
