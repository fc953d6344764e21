//! Every bound of the crate, each with the name under which it is reported.
//!
//! A grammar may come from a request: whatever it says, compiling and matching end, within a known memory. A bound that is
//! hit is an error that names it ([`crate::Fault::limit`]), never a wrong answer.

/// One bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name in messages.
    pub name: &'static str,
    /// The largest value that is allowed.
    pub most: usize,
}

/// Bytes of a grammar's, schema's or tool list's text.
pub const SOURCE_BYTES: Limit = Limit { name: "bytes of source text", most: 4 << 20 };
/// How deep groups, repetitions and schemas may lie inside each other.
pub const DEPTH: Limit = Limit { name: "levels of nesting", most: 256 };
/// Rules, hidden ones for counted repetitions included.
pub const RULES: Limit = Limit { name: "rules", most: 100_000 };
/// Instructions of the compiled program.
pub const INSTRUCTIONS: Limit = Limit { name: "instructions", most: 2_000_000 };
/// The largest bound of a counted repetition.
pub const REPETITIONS: Limit = Limit { name: "repetitions", most: 1_000_000 };
/// Threads of parsing that are alive at one byte.
pub const ITEMS: Limit = Limit { name: "parallel readings of the text", most: 20_000 };
/// What the states cost that the text so far needs: they grow with its open brackets.
pub const MEMORY: Limit = Limit { name: "bytes of matching states", most: 128 << 20 };
/// Readings that one byte or one token mask looks at.
pub const STEPS: Limit = Limit { name: "steps of one token mask", most: 50_000_000 };
/// Alternatives into which the combinations of one schema fall.
pub const BRANCHES: Limit = Limit { name: "combined alternatives of one schema", most: 4096 };
/// Steps of resolving a schema: parts that are merged, compared or checked.
pub const SCHEMA_STEPS: Limit = Limit { name: "steps of resolving the schema", most: 1_000_000 };
/// Errors that one run reports.
pub const FAULTS: usize = 50;
