//! Changes of a stack.

/// How a profile changes a thread's stack. Stacks are kept outermost frame first: `keep`
/// frames stay, and `pushed`, innermost first as profiles store them, come on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackChange {
    /// Outermost frames that stay.
    pub keep: u32,
    /// Frames that come on top.
    pub push: u32,
}
