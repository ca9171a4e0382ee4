//! Threads that walk through the program.
//!
//! A call tree grows as it is walked: a visit mostly repeats one of the calls that were made from
//! there before, the older ones more often, and seldom makes a new one. So hot paths recur, and
//! the tail is long.

use std::collections::HashMap;

use super::program::Program;
use super::random::Random;

/// Weight of a new call among the visits of a position.
const NOVELTY: f64 = 0.25;
const DEEPEST: usize = 118;
const NONE: u32 = u32::MAX;

/// Every position and every stack so far. A stack is a frame and the stack that called it.
#[derive(Default)]
pub struct Tree {
    positions: Vec<Position>,
    pub frame: Vec<u32>,
    pub parent: Vec<u32>,
    /// Frames on top of a line: `<GC>` and `<native>`.
    extras: HashMap<(u32, u32), u32>,
}

/// A function as it was called in one way.
struct Position {
    function: usize,
    depth: usize,
    caller: Option<usize>,
    /// The stack of the calls that lead here.
    stack: u32,
    calls: Vec<(u32, usize)>,
    visits: u32,
    leaves: Vec<u32>,
    /// How likely a walk down ends here.
    stop: f64,
}

impl Tree {
    fn stack(&mut self, frame: u32, parent: u32) -> u32 {
        self.frame.push(frame);
        self.parent.push(parent);
        (self.frame.len() - 1) as u32
    }

    /// A position outside of all calls, in this function.
    pub fn root(&mut self, function: usize) -> usize {
        self.position(function, None, NONE, 0.0)
    }

    fn position(&mut self, function: usize, caller: Option<usize>, stack: u32, stop: f64) -> usize {
        let depth = 1 + caller.map_or(0, |caller| self.positions[caller].depth);
        let (calls, leaves) = (Vec::new(), Vec::new());
        self.positions.push(Position { function, depth, caller, stack, calls, visits: 0, leaves, stop });
        self.positions.len() - 1
    }

    /// Makes a call from a position.
    fn call(&mut self, from: usize, program: &Program, random: &mut Random) -> usize {
        let position = &mut self.positions[from];
        position.visits += 1;
        let visits = f64::from(position.visits);
        if !position.calls.is_empty() && random.unit() * (visits + NOVELTY) >= NOVELTY {
            return random.hot(&position.calls).1;
        }
        let (frame, callee) = random.hot(&program.functions[position.function].sites);
        if let Some((_, known)) = position.calls.iter().find(|(known, _)| *known == frame) {
            return *known;
        }
        let (parent, stop) = (position.stack, stop(position.depth + 1, random));
        let stack = self.stack(frame, parent);
        let to = self.position(callee, Some(from), stack, stop);
        self.positions[from].calls.push((frame, to));
        to
    }

    /// The stack of a line at a position.
    fn leaf(&mut self, at: usize, program: &Program, random: &mut Random) -> u32 {
        let position = &self.positions[at];
        let known = position.leaves.len();
        if known == 0 || known < 8 && random.chance(0.01) {
            let frame = random.hot(&program.functions[position.function].leaves);
            let same = position.leaves.iter().find(|leaf| self.frame[**leaf as usize] == frame).copied();
            let parent = position.stack;
            let leaf = same.unwrap_or_else(|| self.stack(frame, parent));
            self.positions[at].leaves.push(leaf);
        }
        random.hot(&self.positions[at].leaves)
    }

    fn extra(&mut self, frame: u32, leaf: u32) -> u32 {
        if let Some(known) = self.extras.get(&(frame, leaf)) {
            return *known;
        }
        let stack = self.stack(frame, leaf);
        self.extras.insert((frame, leaf), stack);
        stack
    }
}

fn stop(depth: usize, random: &mut Random) -> f64 {
    let end = match depth {
        ..12 => return 0.0,
        12..40 => 0.035,
        40..100 => 0.07,
        100..DEEPEST => 1.0,
        _ => return 1.0,
    };
    if random.chance(end) { 0.85 } else { 0.004 }
}

/// One thread's place in the program.
pub struct Walk {
    at: usize,
    leaf: u32,
    /// The thread's stack.
    pub stack: u32,
}

impl Walk {
    pub fn new(root: usize, tree: &mut Tree, program: &Program, random: &mut Random) -> Self {
        let mut walk = Walk { at: root, leaf: NONE, stack: NONE };
        walk.down(usize::MAX, tree, program, random);
        walk.stack = walk.leaf;
        walk
    }

    /// Changes the stack, most often by its innermost line alone.
    pub fn change(&mut self, tree: &mut Tree, program: &Program, random: &mut Random) {
        let before = self.stack;
        for _ in 0..8 {
            let kind = random.unit();
            match kind {
                ..0.50 => self.leaf = tree.leaf(self.at, program, random),
                ..0.62 => self.down(1 + random.exponential(0.8), tree, program, random),
                ..0.74 => {
                    self.up(1 + random.exponential(0.9), tree);
                    self.leaf = tree.leaf(self.at, program, random);
                }
                ..0.95 => {
                    self.up(1 + random.exponential(0.25), tree);
                    self.down(usize::MAX, tree, program, random);
                }
                ..0.97 => {
                    self.up(usize::MAX, tree);
                    self.down(usize::MAX, tree, program, random);
                }
                _ => {}
            }
            self.stack = match kind {
                ..0.97 => self.leaf,
                ..0.985 => tree.extra(program.gc, self.leaf),
                _ => tree.extra(program.native, self.leaf),
            };
            if self.stack != before {
                return;
            }
        }
    }

    fn down(&mut self, mut steps: usize, tree: &mut Tree, program: &Program, random: &mut Random) {
        while steps > 0 && !random.chance(tree.positions[self.at].stop) {
            self.at = tree.call(self.at, program, random);
            steps -= 1;
        }
        self.leaf = tree.leaf(self.at, program, random);
    }

    fn up(&mut self, steps: usize, tree: &Tree) {
        for _ in 0..steps {
            let Some(caller) = tree.positions[self.at].caller else { return };
            self.at = caller;
        }
    }
}
