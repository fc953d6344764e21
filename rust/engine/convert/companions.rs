//! The files that travel with the weights: configuration, tokenizer, templates, sampling defaults, licence.

use std::path::Path;

use colibri_store::container::manifest::FileDigest;
use colibri_store::container::{read_small, resolve};
use colibri_store::durable::copy_file;
use colibri_store::error::StoreError;

use crate::error::EngineError;

/// Files that travel along when the checkpoint has them. The configuration is always there; what it says of quantisation
/// in the source is left in it, since readers decide by the types of the tensors.
const COMPANIONS: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
];

/// What text needs, and what is missing without it. Any of the files will do.
const NEEDED: &[(&[&str], &str)] = &[
    (&["tokenizer.json"], "without it the model takes and gives token ids only"),
    (&["tokenizer_config.json"], "without it there are no special tokens by name"),
    (&["generation_config.json"], "without it sampling has no defaults of the model"),
];

/// The longest tokenizer configuration that is looked into, in bytes.
const LONGEST_CONFIGURATION: u64 = 64 << 20;

/// A folder of further templates that is not taken over.
const TEMPLATES: &str = "additional_chat_templates";

/// Copies what travels along into `folder`; returns the files.
pub(super) fn copy(source: &Path, folder: &Path) -> Result<Vec<FileDigest>, EngineError> {
    let mut files = Vec::new();
    for name in COMPANIONS {
        let path = resolve(source, name).map_err(|fault| StoreError::fault(source, fault))?;
        if let Some(path) = path.filter(|path| path.is_file()) {
            let (bytes, sha256) = copy_file(&path, &folder.join(name))?;
            files.push(FileDigest { file: (*name).to_owned(), bytes, sha256 });
        }
    }
    Ok(files)
}

/// What should have travelled along and was not there.
pub(super) fn missing(source: &Path, there: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut notes = Vec::new();
    for (names, consequence) in NEEDED {
        if !names.iter().any(|name| there(name)) {
            let name = names.first().copied().unwrap_or_default();
            notes.push(format!("{name} is not in the source: {consequence}"));
        }
    }
    let template = ["chat_template.jinja", "chat_template.json"].iter().any(|name| there(name));
    if !template && !configured_template(source) {
        notes.push("chat_template.jinja is not in the source: without a template there is no chat".to_owned());
    }
    if source.join(TEMPLATES).is_dir() {
        notes.push(format!("{TEMPLATES} stays behind: only the default template is taken over"));
    }
    notes
}

/// Whether the tokenizer's configuration holds a template, as older checkpoints have it.
fn configured_template(source: &Path) -> bool {
    let text = read_small(&source.join("tokenizer_config.json"), LONGEST_CONFIGURATION).unwrap_or_default();
    let parsed: Option<serde_json::Value> = serde_json::from_slice(&text).ok();
    parsed.is_some_and(|value| value.get("chat_template").is_some_and(|template| !template.is_null()))
}
