//! GBNF, the grammar notation of llama.cpp.
//!
//! Reads the current notation (<https://github.com/ggml-org/llama.cpp/tree/master/grammars>) and a little more: `{,n}`,
//! `_` in names, `\-` in classes, `#` comments anywhere, line breaks inside of groups and around `|`. Numeric escapes
//! (`\xHH`, `\uHHHH`, `\UHHHHHHHH`) are code points. `<name>` and `<[id]>` are special tokens, `!<name>` any one token but that; text
//! in quotes that spells a token is text. Every fault of a text is reported in one run.
//!
//! Refuses: an escape that is not known (a regex shorthand such as `\d` is not the letter), rules that are missing, given
//! twice or cannot end, a text without `root`.

mod parser;
#[cfg(test)]
mod tests;
mod text;
mod writer;

use crate::builder::Builder;
use crate::error::GrammarError;
use crate::program::Program;

pub(crate) use writer::write;

/// Compiles a grammar; `root` is where it starts.
///
/// # Errors
/// All faults of the text, in the order of their places, or the limit that was hit.
pub fn compile(text: &str) -> Result<Program, GrammarError> {
    let mut builder = Builder::new();
    let root = parser::read(text, &mut builder)?;
    builder.finish(root)
}
