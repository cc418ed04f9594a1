//! The heaviest perfect matching of a complete graph with an even number of vertices, exactly, in
//! O(n³).
//!
//! Edmonds' blossom algorithm as a search that is driven by its dual variables. Each stage grows
//! alternating trees from all vertices without a mate until two of them meet. Within a stage, the
//! next thing to happen is always the one that needs the smallest change of the duals: a tree
//! *grows* by a matched pair, two *outer* blossoms *meet* (the cycle between them shrinks to a
//! blossom, or two trees make an augmenting path), or an inner blossom whose variable is used up
//! *expands*. A stage has O(n) of these events and looks for each in O(n); what makes that enough
//! is that the vertex of an outer blossom that is nearest to a given vertex stays the nearest while
//! the duals change.
//!
//! Weights and duals are integers, the duals doubled so that half a slack is one too: nothing is
//! rounded here. On a complete graph of even order a perfect matching exists, so the search cannot
//! fail, and vertices' duals may be negative. A bit-mask over all subsets would be shorter and ends
//! at some twenty vertices.
//!
//! Sources: J. Edmonds, "Maximum matching and a polyhedron with 0,1-vertices", 1965; Z. Galil,
//! "Efficient algorithms for finding maximum matching in graphs", ACM Computing Surveys 18, 1986,
//! from where "slack" and the duals.

/// No vertex, no blossom.
const NONE: usize = usize::MAX;

/// An edge by the vertices at its ends.
type Edge = (usize, usize);

/// The weights of all edges; symmetric.
pub(super) struct Weights {
    vertices: usize,
    weights: Vec<i64>,
}

impl Weights {
    /// The weight of each edge by its two vertices. Sums of as many weights as there are vertices
    /// must fit into 61 bits.
    pub fn new(vertices: usize, of: impl Fn(usize, usize) -> i64) -> Weights {
        assert!(vertices.is_multiple_of(2), "an odd vertex has no mate");
        let all = (0..vertices * vertices).map(|at| (at / vertices, at % vertices));
        let weights = all
            .map(|(u, v)| if u == v { 0 } else { of(u.min(v), u.max(v)) })
            .collect();
        Weights { vertices, weights }
    }

    fn at(&self, u: usize, v: usize) -> i64 {
        self.weights[u * self.vertices + v]
    }
}

/// Each vertex's mate in a perfect matching of the largest weight.
pub(super) fn heaviest(weights: &Weights) -> Vec<usize> {
    Search::solve(weights).mate
}

/// The part a blossom has in the trees of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    /// In no tree.
    Free,
    /// At an even distance from its root.
    Outer,
    /// At an odd distance from its root.
    Inner,
}

/// A vertex, or an odd cycle of smaller ones.
struct Blossom {
    /// The blossom directly around it.
    parent: usize,
    /// The vertex whose mate is outside.
    base: usize,
    /// The vertices of the blossom; empty while the number is not in use.
    members: Vec<usize>,
    /// The cycle, beginning with the part that holds the base; empty for a vertex.
    children: Vec<usize>,
    /// The edge from each child to the next; those after children 1, 3, 5 … are matched.
    links: Vec<Edge>,
    label: Label,
    /// Of an inner blossom: the edge over which the tree reached it, its own end last.
    entry: Edge,
    /// Of an outer blossom: for each vertex outside, its own vertex with the least slack to it.
    near: Vec<usize>,
    /// Of an outer blossom: the outer vertex outside with the least slack to it.
    rival: usize,
}

/// The next event of the search.
enum MatchingEvent {
    /// The blossom of a free vertex joins the tree of the nearest outer vertex.
    Grow(usize),
    /// An outer blossom meets its rival.
    Meet(usize),
    /// An inner blossom is expanded.
    Expand(usize),
}

/// From an outer blossom to the root of its tree: the blossoms, and the edge from each to the next.
struct Path {
    blossoms: Vec<usize>,
    links: Vec<Edge>,
}

struct Search<'a> {
    weights: &'a Weights,
    vertices: usize,
    /// Doubled duals: of the vertices, then of the blossoms.
    dual: Vec<i64>,
    mate: Vec<usize>,
    /// The outermost blossom around each vertex.
    top: Vec<usize>,
    /// For each vertex, the outer vertex with the least slack to it.
    closest: Vec<usize>,
    blossoms: Vec<Blossom>,
    /// Numbers of blossoms that are not in use.
    spare: Vec<usize>,
}

impl<'a> Search<'a> {
    fn solve(weights: &'a Weights) -> Search<'a> {
        let vertices = weights.vertices;
        // Blossoms are nested or disjoint, odd, and of three vertices at least, so there are fewer
        // than half as many.
        let numbers = vertices + vertices / 2;
        let heaviest = weights.weights.iter().copied().max().unwrap_or(0).max(0);
        let mut dual = vec![0; numbers];
        dual[..vertices].fill(heaviest);
        let mut search = Search {
            weights,
            vertices,
            dual,
            mate: vec![NONE; vertices],
            top: (0..vertices).collect(),
            closest: vec![NONE; vertices],
            blossoms: (0..numbers).map(|id| Blossom::new(id, vertices)).collect(),
            spare: (vertices..numbers).collect(),
        };
        for _ in 0..vertices / 2 {
            search.stage();
        }
        search
    }

    /// Grows trees until there is one more matched pair.
    fn stage(&mut self) {
        self.closest.fill(NONE);
        for blossom in &mut self.blossoms {
            blossom.label = Label::Free;
        }
        for id in 0..self.blossoms.len() {
            if self.is_top(id) && self.mate[self.blossoms[id].base] == NONE {
                self.become_outer(id);
            }
        }
        loop {
            let (change, event) = self.next_event();
            self.change_duals(change);
            match event {
                MatchingEvent::Grow(v) => self.grow(self.closest[v], v),
                MatchingEvent::Meet(id) => {
                    let v = self.blossoms[id].rival;
                    if self.meet(self.blossoms[id].near[v], v) {
                        return;
                    }
                }
                MatchingEvent::Expand(id) => self.expand(id),
            }
        }
    }

    /// The event that needs the smallest change of the duals.
    fn next_event(&self) -> (i64, MatchingEvent) {
        let mut first: Option<(i64, MatchingEvent)> = None;
        let mut offer = |change: i64, event: MatchingEvent| {
            if first.as_ref().is_none_or(|(least, _)| change < *least) {
                first = Some((change, event));
            }
        };
        for v in 0..self.vertices {
            if self.label(v) == Label::Free {
                offer(self.slack(self.closest[v], v), MatchingEvent::Grow(v));
            }
        }
        for (id, blossom) in self.blossoms.iter().enumerate() {
            if !self.is_top(id) {
                continue;
            }
            match blossom.label {
                Label::Outer if blossom.rival != NONE => {
                    let v = blossom.rival;
                    offer(self.slack(blossom.near[v], v) / 2, MatchingEvent::Meet(id));
                }
                Label::Inner if id >= self.vertices => {
                    offer(self.dual[id] / 2, MatchingEvent::Expand(id))
                }
                _ => {}
            }
        }
        // Two vertices without a mate are outer and rivals of one another, or not yet and then
        // something grows.
        first.expect("an even complete graph has a perfect matching")
    }

    fn change_duals(&mut self, change: i64) {
        for v in 0..self.vertices {
            match self.label(v) {
                Label::Outer => self.dual[v] -= change,
                Label::Inner => self.dual[v] += change,
                Label::Free => {}
            }
        }
        for id in self.vertices..self.blossoms.len() {
            if self.is_top(id) {
                match self.blossoms[id].label {
                    Label::Outer => self.dual[id] += 2 * change,
                    Label::Inner => self.dual[id] -= 2 * change,
                    Label::Free => {}
                }
            }
        }
    }

    /// The free blossom of `v` becomes inner, reached from `u`, and its mate outer.
    fn grow(&mut self, u: usize, v: usize) {
        let id = self.top[v];
        self.blossoms[id].label = Label::Inner;
        self.blossoms[id].entry = (u, v);
        let mate = self.mate[self.blossoms[id].base];
        self.become_outer(self.top[mate]);
    }

    /// An edge between two outer blossoms has no slack: true when it has led to one more pair.
    fn meet(&mut self, u: usize, v: usize) -> bool {
        let (left, right) = (self.path(u), self.path(v));
        let mut position = vec![NONE; self.blossoms.len()];
        for (at, &id) in left.blossoms.iter().enumerate() {
            position[id] = at;
        }
        let common = right.blossoms.iter().position(|&id| position[id] != NONE);
        match common {
            Some(at) => {
                let steps = (position[right.blossoms[at]], at);
                self.shrink((u, v), &left, &right, steps);
                false
            }
            None => {
                self.flip(u, v);
                self.flip(v, u);
                true
            }
        }
    }

    fn path(&self, u: usize) -> Path {
        let mut path = Path {
            blossoms: vec![self.top[u]],
            links: Vec::new(),
        };
        let mut id = self.top[u];
        loop {
            let base = self.blossoms[id].base;
            let mate = self.mate[base];
            if mate == NONE {
                return path;
            }
            let inner = self.top[mate];
            let (before, own) = self.blossoms[inner].entry;
            id = self.top[before];
            path.blossoms.extend([inner, id]);
            path.links.extend([(base, mate), (own, before)]);
        }
    }

    /// Contracts the cycle that an edge closes into one outer blossom; `steps` lead from its ends
    /// to where the paths join.
    fn shrink(&mut self, edge: Edge, left: &Path, right: &Path, steps: (usize, usize)) {
        let (left_steps, right_steps) = steps;
        let root = left.blossoms[left_steps];
        let down = left.blossoms[..left_steps].iter().rev();
        let up = &right.blossoms[..right_steps];
        let children: Vec<usize> = std::iter::once(&root)
            .chain(down)
            .chain(up)
            .copied()
            .collect();
        let down = left.links[..left_steps].iter().rev();
        let links = down
            .map(|&(from, to)| (to, from))
            .chain([edge])
            .chain(right.links[..right_steps].iter().copied())
            .collect();
        let id = self
            .spare
            .pop()
            .expect("fewer blossoms than half the vertices");
        let (mut members, mut fresh) = (Vec::new(), Vec::new());
        for &child in &children {
            let part = &mut self.blossoms[child];
            part.parent = id;
            members.extend(&part.members);
            if part.label == Label::Inner {
                fresh.extend(&part.members);
            }
        }
        for &v in &members {
            self.top[v] = id;
        }
        let near = self.nearest_of(id, &children);
        self.dual[id] = 0;
        self.blossoms[id] = Blossom {
            base: self.blossoms[root].base,
            members,
            children,
            links,
            near,
            ..Blossom::new(NONE, 0)
        };
        self.add_outer(id, &fresh);
    }

    /// For each vertex outside blossom `id`, the nearest vertex of those children that were outer
    /// already.
    fn nearest_of(&self, id: usize, children: &[usize]) -> Vec<usize> {
        let mut near = vec![NONE; self.vertices];
        for &child in children {
            let part = &self.blossoms[child];
            if part.label != Label::Outer {
                continue;
            }
            for (v, nearest) in near.iter_mut().enumerate() {
                if self.top[v] != id && self.is_nearer(part.near[v], *nearest, v) {
                    *nearest = part.near[v];
                }
            }
        }
        near
    }

    /// A whole blossom becomes outer.
    fn become_outer(&mut self, id: usize) {
        let members = self.blossoms[id].members.clone();
        self.blossoms[id].near.clear();
        self.blossoms[id].near.resize(self.vertices, NONE);
        self.add_outer(id, &members);
    }

    /// Adds the vertices of an outer blossom that were not outer before, and finds its rival.
    fn add_outer(&mut self, id: usize, fresh: &[usize]) {
        self.blossoms[id].label = Label::Outer;
        let mut near = std::mem::take(&mut self.blossoms[id].near);
        for &u in fresh {
            for v in (0..self.vertices).filter(|&v| self.top[v] != id) {
                if self.is_nearer(u, near[v], v) {
                    near[v] = u;
                }
                if self.is_nearer(u, self.closest[v], v) {
                    self.closest[v] = u;
                }
            }
        }
        self.blossoms[id].near = near;
        for other in 0..self.blossoms.len() {
            if other != id && self.is_top(other) && self.blossoms[other].label == Label::Outer {
                fresh.iter().for_each(|&v| self.offer_rival(other, v));
            }
        }
        self.blossoms[id].rival = NONE;
        for v in 0..self.vertices {
            if self.top[v] != id && self.label(v) == Label::Outer {
                self.offer_rival(id, v);
            }
        }
    }

    /// Outer vertex `v` is the rival of an outer blossom if none is nearer.
    fn offer_rival(&mut self, id: usize, v: usize) {
        let Blossom { near, rival, .. } = &self.blossoms[id];
        let is_least = *rival == NONE || self.slack(near[v], v) < self.slack(near[*rival], *rival);
        if is_least {
            self.blossoms[id].rival = v;
        }
    }

    /// An inner blossom whose dual is used up becomes its children again: those on the way from its
    /// entry to its base stay in the tree, inner and outer in turn.
    fn expand(&mut self, id: usize) {
        let whole = std::mem::replace(&mut self.blossoms[id], Blossom::new(NONE, 0));
        self.spare.push(id);
        for &child in &whole.children {
            let part = &mut self.blossoms[child];
            (part.parent, part.label) = (NONE, Label::Free);
            for &v in &part.members {
                self.top[v] = child;
            }
        }
        let (children, links, count) = (&whole.children, &whole.links, whole.children.len());
        let first = self.top[whole.entry.1];
        let first = children.iter().position(|&child| child == first);
        let first = first.expect("the entry is in one of the children");
        // Children 1 and 2, 3 and 4 … are pairs: from an odd one the matched link leads on, from an
        // even one back.
        let step = |at: usize| match first % 2 {
            1 => ((at + 1) % count, links[at]),
            _ => (at - 1, (links[at - 1].1, links[at - 1].0)),
        };
        let (mut at, mut entry, mut outer) = (first, whole.entry, Vec::new());
        loop {
            let inner = &mut self.blossoms[children[at]];
            (inner.label, inner.entry) = (Label::Inner, entry);
            if at == 0 {
                break;
            }
            let (mate, _) = step(at);
            outer.push(children[mate]);
            (at, entry) = step(mate);
        }
        outer.into_iter().for_each(|child| self.become_outer(child));
    }

    /// Matches `u` to `v` and changes what is matched on the way from `u` to the root of its tree.
    fn flip(&mut self, u: usize, v: usize) {
        let (mut u, mut v) = (u, v);
        loop {
            let id = self.top[u];
            let mate = self.mate[self.blossoms[id].base];
            self.move_base(id, u);
            self.mate[u] = v;
            if mate == NONE {
                return;
            }
            let inner = self.top[mate];
            let (before, own) = self.blossoms[inner].entry;
            self.move_base(inner, own);
            self.mate[own] = before;
            (u, v) = (before, own);
        }
    }

    /// Matches the inside of a blossom so that `u` is the vertex left over.
    fn move_base(&mut self, id: usize, u: usize) {
        if self.blossoms[id].base == u {
            return;
        }
        let mut child = u;
        while self.blossoms[child].parent != id {
            child = self.blossoms[child].parent;
        }
        self.move_base(child, u);
        let mut children = std::mem::take(&mut self.blossoms[id].children);
        let mut links = std::mem::take(&mut self.blossoms[id].links);
        let at = children.iter().position(|&part| part == child);
        let at = at.expect("a blossom's part is among its children");
        children.rotate_left(at);
        links.rotate_left(at);
        for pair in (1..children.len()).step_by(2) {
            let (p, q) = links[pair];
            self.move_base(children[pair], p);
            self.move_base(children[pair + 1], q);
            (self.mate[p], self.mate[q]) = (q, p);
        }
        let whole = &mut self.blossoms[id];
        (whole.children, whole.links, whole.base) = (children, links, u);
    }

    fn is_top(&self, id: usize) -> bool {
        let blossom = &self.blossoms[id];
        blossom.parent == NONE && !blossom.members.is_empty()
    }

    fn label(&self, v: usize) -> Label {
        self.blossoms[self.top[v]].label
    }

    /// How far the duals of an edge's ends are above its doubled weight; for ends in different
    /// outermost blossoms.
    fn slack(&self, u: usize, v: usize) -> i64 {
        self.dual[u] + self.dual[v] - 2 * self.weights.at(u, v)
    }

    fn is_nearer(&self, u: usize, than: usize, v: usize) -> bool {
        than == NONE || self.slack(u, v) < self.slack(than, v)
    }
}

impl Blossom {
    /// A vertex, or a number that is not in use.
    fn new(id: usize, vertices: usize) -> Blossom {
        let is_vertex = id < vertices;
        Blossom {
            parent: NONE,
            base: id,
            members: if is_vertex { vec![id] } else { Vec::new() },
            children: Vec::new(),
            links: Vec::new(),
            label: Label::Free,
            entry: (NONE, NONE),
            near: Vec::new(),
            rival: NONE,
        }
    }
}

#[cfg(test)]
#[path = "matching_tests.rs"]
mod tests;
