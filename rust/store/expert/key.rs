//! The name of one routed expert.

use std::fmt;

/// One routed expert of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertKey {
    /// Index of the layer in the model.
    pub layer: u32,
    /// Index of the expert within its layer.
    pub expert: u32,
}

impl ExpertKey {
    /// The expert `expert` of layer `layer`.
    pub fn new(layer: u32, expert: u32) -> Self {
        ExpertKey { layer, expert }
    }
}

impl fmt::Display for ExpertKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "expert {} of layer {}", self.expert, self.layer)
    }
}
