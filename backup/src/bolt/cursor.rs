//! Walks the entries of a bucket in order, in both directions, with one page of each level in memory.

use super::meta::Meta;
use super::page::{Kind, Page, PageId, Pages};
use super::{BoltError, Root};

/// The deepest a tree may be. With two children a branch, this many levels have more pages than a file can.
const DEEPEST: usize = 48;
/// How often a walk may come to a page, on average. From end to end it comes to each once, and there and back again twice;
/// in a damaged tree, whose pages are reached by many ways, it would hardly ever end.
const MOST_VISITS: u64 = 4;

/// A place among a bucket's entries, or none.
#[derive(Debug)]
pub struct Cursor<'a, P> {
    pages: &'a P,
    meta: &'a Meta,
    root: Root,
    /// From the root to a leaf, each with the entry that is taken there.
    path: Vec<(Page, usize)>,
    /// Pages that were read since it was put to an end.
    visits: u64,
}

/// Which entry of a page is taken on the way down.
#[derive(Debug, Clone, Copy)]
enum End {
    First,
    Last,
}

impl<'a, P: Pages> Cursor<'a, P> {
    pub(super) fn new(pages: &'a P, meta: &'a Meta, root: Root) -> Self {
        Self { pages, meta, root, path: Vec::new(), visits: 0 }
    }

    /// Goes to the first entry; false if there is none.
    pub fn first(&mut self) -> Result<bool, BoltError> {
        self.go_to(End::First)
    }

    /// Goes to the last entry; false if there is none.
    pub fn last(&mut self) -> Result<bool, BoltError> {
        self.go_to(End::Last)
    }

    /// Goes one further; false if there is none, and then the cursor is nowhere.
    pub fn forward(&mut self) -> Result<bool, BoltError> {
        self.step(End::First, |page, index| (index + 1 < page.count).then_some(index + 1))
    }

    /// Goes one back; false if there is none, and then the cursor is nowhere.
    pub fn back(&mut self) -> Result<bool, BoltError> {
        self.step(End::Last, |_, index| index.checked_sub(1))
    }

    /// The flags, key and value at this place.
    pub fn entry(&self) -> Result<(u32, &[u8], &[u8]), BoltError> {
        match self.path.last() {
            Some((page, index)) => page.leaf(*index),
            None => Err(BoltError::page(PageId::new(0), "there is no entry")),
        }
    }

    /// The key and value at this place.
    pub fn pair(&self) -> Result<(&[u8], &[u8]), BoltError> {
        let (_, key, value) = self.entry()?;
        Ok((key, value))
    }

    /// A fault of the page that holds this place.
    pub(super) fn fault(&self, fault: &'static str) -> BoltError {
        BoltError::page(self.path.last().map_or_else(|| PageId::new(0), |(page, _)| page.id), fault)
    }

    /// The pages from the root to here.
    pub(super) fn path(&self) -> &[(Page, usize)] {
        &self.path
    }

    fn go_to(&mut self, end: End) -> Result<bool, BoltError> {
        self.path.clear();
        self.visits = 0;
        let root = match &self.root {
            Root::Page(id) => Page::load(self.pages, self.meta, *id)?,
            Root::Inline(bytes) => Page::read(PageId::new(0), bytes.clone())?,
        };
        self.descend(root, end)
    }

    /// From a page down to a leaf.
    fn descend(&mut self, mut page: Page, end: End) -> Result<bool, BoltError> {
        loop {
            if self.path.len() >= DEEPEST {
                return Err(BoltError::page(page.id, "the tree is too deep: its pages form a circle"));
            }
            let index = match end {
                End::First => 0,
                End::Last => page.count.saturating_sub(1),
            };
            let child = match page.kind {
                Kind::Leaf if page.count > 0 => {
                    self.path.push((page, index));
                    return Ok(true);
                }
                // An empty bucket has an empty leaf for its root. bbolt leaves no other empty leaf behind.
                Kind::Leaf if self.path.is_empty() => return Ok(false),
                Kind::Leaf => return Err(BoltError::page(page.id, "it is an empty leaf below a branch")),
                Kind::Branch => page.branch(index)?.1,
            };
            self.path.push((page, index));
            page = self.load(child)?;
        }
    }

    /// Up until there is a neighbour, and down from it.
    fn step(&mut self, end: End, neighbour: impl Fn(&Page, usize) -> Option<usize>) -> Result<bool, BoltError> {
        while let Some((page, index)) = self.path.last_mut() {
            let Some(next) = neighbour(page, *index) else {
                self.path.pop();
                continue;
            };
            *index = next;
            if page.kind == Kind::Leaf {
                return Ok(true);
            }
            let child = page.branch(next)?.1;
            let page = self.load(child)?;
            return self.descend(page, end);
        }
        Ok(false)
    }

    fn load(&mut self, id: PageId) -> Result<Page, BoltError> {
        self.visits += 1;
        if self.visits > self.meta.high_water.get().saturating_mul(MOST_VISITS) {
            return Err(BoltError::page(id, "the tree comes to its pages again and again"));
        }
        Page::load(self.pages, self.meta, id)
    }
}
