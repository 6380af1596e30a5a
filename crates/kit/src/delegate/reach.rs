/// Who else takes leases from an allocator's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nobody but this node.
    Node,
    /// Other nodes too, so that this node's identity must be its own, and stay.
    Cluster,
}

impl Reach {
    /// The word for it, as `about --json` says it: `node` or `cluster`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Cluster => "cluster",
        }
    }

    /// Reads the word of `about --json`.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Node, Self::Cluster].into_iter().find(|reach| reach.as_str() == word)
    }
}
