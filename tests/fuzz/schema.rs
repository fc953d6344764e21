//! Target `schema`: the first byte says whether a schema or a list of tools follows, as its text or as choices of its
//! keywords, and how it is read; what is left chooses a way through its language.
//!
//! Asserts: a refusal names a place that the document has, is bounded in number and length and cannot drive a terminal; a
//! keyword that is not followed is named. What is accepted never comes to a place without a way on, means the same each
//! time, when it is read leniently and when it is written as GBNF; the text of a walk is JSON, or calls of the tools that are
//! read back, and nothing that the standard forbids.

use colibri_grammar::schema::{self, CompiledSchema, Note, SchemaOptions, Whitespace};
use colibri_grammar::tools::{self, Call, Calls, OPENS, ToolOptions};
use colibri_grammar::{Constraint, FaultCode, GrammarError, Program, gbnf};
use serde_json::Value;

use super::check;
use super::input::Input;
use super::language;

mod valid;
mod write;

use valid::Document;
use write::Writer;

/// The longest walk, in bytes: less than twice the depth of the JSON reader.
const FARTHEST: usize = 240;
/// Instructions for each byte of a document's text, and those that every one may need.
const MOST_INSTRUCTIONS: (usize, usize) = (4000, 100_000);

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let choices = input.byte();
    let whitespace = if choices & 1 == 0 { Whitespace::Compact } else { Whitespace::Flexible };
    let options = SchemaOptions { lenient: choices & 2 != 0, whitespace };
    let of_tools = choices & 4 != 0;
    let text = if choices & 8 != 0 {
        let (text, walk) = input.0.split_at(input.0.iter().position(|byte| *byte == 0).unwrap_or(input.0.len()));
        input = Input(walk.get(1..).unwrap_or_default());
        String::from_utf8_lossy(text).into_owned()
    } else {
        let mut writer = Writer::new(&mut input);
        if of_tools { writer.tools().to_string() } else { writer.document().to_string() }
    };
    if of_tools {
        let options = ToolOptions {
            free: choices & 16 != 0,
            parallel: choices & 32 != 0,
            schema: options,
            ..ToolOptions::default()
        };
        list(&text, &options, &mut input);
    } else {
        single(&text, &options, &mut input);
    }
}

fn single(text: &str, options: &SchemaOptions, input: &mut Input<'_>) {
    let Some(compiled) = judged(schema::compile(text, options), text, "") else { return };
    let document: Value = serde_json::from_str(text).expect("accepted, so it is JSON");
    let guide = input.0;
    let again = schema::compile(text, &SchemaOptions { lenient: true, ..*options }).expect("accepted before");
    language::alike(again.program, compiled.program, &mut Input(guide), FARTHEST);
    if let Ok(written) = schema::to_gbnf(text, options) {
        language::alike(
            read_again(&written),
            schema::compile(text, options).expect("accepted").program,
            &mut Input(guide),
            FARTHEST,
        );
    }
    let compiled = schema::compile(text, options).expect("accepted before");
    let Some(mut matcher) = language::begin(compiled.program) else { return };
    let mut standard = Document::new(&document);
    for part in guide.chunks(FARTHEST).take(3).chain([&[][..]]) {
        let start = matcher.mark();
        let found = language::walk(&mut matcher, &mut Input(part), FARTHEST);
        matcher.rewind(start);
        let Some(found) = found else { continue };
        let found = String::from_utf8(found).expect("JSON is UTF-8");
        let value: Value = serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error}: {found}\n{text}"));
        let fits = options.lenient || standard.judge(&value, &found, &document) != Some(false);
        assert!(fits, "the value does not fit: {found}\n{text}");
    }
}

fn list(text: &str, options: &ToolOptions, input: &mut Input<'_>) {
    let Some(compiled) = judged(tools::compile(text, options), text, "<") else { return };
    let document: Value = serde_json::from_str(text).expect("accepted, so it is JSON");
    let again = tools::compile(text, options).expect("accepted before");
    language::alike(again.program, compiled.program, &mut Input(input.0), FARTHEST);
    if let Ok(written) = tools::to_gbnf(text, options) {
        language::alike(
            read_again(&written),
            tools::compile(text, options).expect("accepted").program,
            &mut Input(input.0),
            FARTHEST,
        );
    }
    let compiled = tools::compile(text, options).expect("accepted before");
    let Some(mut matcher) = language::begin(compiled.program) else { return };
    let Some(found) = language::walk(&mut matcher, input, FARTHEST) else { return };
    let found = String::from_utf8(found).expect("calls are UTF-8");
    let Some(begin) = found.find(OPENS) else {
        assert!(options.free, "no call: {found}");
        return;
    };
    assert!(options.free || begin == 0, "text before a call: {found}");
    let functions = document.as_array().expect("a list of tools").iter().map(|tool| {
        let parameters = tool.get("parameters").filter(|parameters| !parameters.is_null());
        (tool["name"].as_str().expect("a name"), parameters.map_or_else(|| "{}".to_owned(), Value::to_string))
    });
    let functions: Vec<(&str, String)> = functions.collect();
    let (calls, rest) = Calls::new(functions.iter().map(|(name, text)| (*name, text.as_str()))).read(&found[begin..]);
    assert!(rest.is_empty() && !calls.is_empty() && (options.parallel || calls.len() == 1), "{found}");
    calls.iter().for_each(|call| fits(call, &document, options));
}

fn read_again(written: &str) -> Program {
    gbnf::compile(written).unwrap_or_else(|error| panic!("refused when written as GBNF: {error}\n{written}"))
}

/// Checks that a call that was read has the arguments that its schema asks for.
fn fits(call: &Call, document: &Value, options: &ToolOptions) {
    let tools = document.as_array().expect("a list of tools");
    let tool = tools.iter().find(|tool| tool["name"] == call.name.as_str()).expect("a tool of the list");
    let parameters = &tool["parameters"];
    let arguments: Value = serde_json::from_str(&call.arguments).expect("arguments are JSON");
    let arguments = arguments.as_object().expect("arguments are an object");
    for (key, value) in arguments {
        let schema = parameters["properties"].get(key).unwrap_or_else(|| panic!("no such argument: {key}"));
        let judged = Document::new(parameters).judge(value, &value.to_string(), schema);
        assert!(judged != Some(false) || options.schema.lenient, "{value} does not fit {schema}");
    }
    let required = parameters["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    required.for_each(|name| assert!(arguments.contains_key(name), "`{name}` is missing: {}", call.arguments));
}

/// What was compiled, within bounds, or a refusal. Names of tools stand before the pointers of their schemas.
fn judged(outcome: Result<CompiledSchema, GrammarError>, text: &str, mark: &str) -> Option<CompiledSchema> {
    match outcome {
        Ok(compiled) => {
            let most = MOST_INSTRUCTIONS.0 * text.len() + MOST_INSTRUCTIONS.1;
            assert!(compiled.program.instructions() <= most, "{}: {text}", compiled.program.instructions());
            compiled.notes.iter().for_each(|note| noted(note, mark));
            Some(compiled)
        }
        Err(error) => {
            let all = [FaultCode::Syntax, FaultCode::Unsupported, FaultCode::TooComplex, FaultCode::DeadEnd];
            language::refusal(&error, &all, text);
            for fault in error.faults() {
                assert!(
                    fault.place.is_some() || fault.pointer.is_some() || fault.code == FaultCode::TooComplex,
                    "{fault:?}"
                );
                let quotes = fault.what.contains('`') || fault.place.is_some() || fault.what.starts_with("the number");
                assert!(fault.code != FaultCode::Unsupported || quotes, "no keyword is named: {fault:?}");
                if let (Some(pointer), Ok(document)) = (&fault.pointer, serde_json::from_str::<Value>(text)) {
                    pointed(pointer, &document, mark);
                }
            }
            None
        }
    }
}

fn noted(note: &Note, mark: &str) {
    assert!(note.pointer.contains('#') && (note.pointer.starts_with('#') || !mark.is_empty()), "{note:?}");
    assert!(!note.text.is_empty());
    check::shown(&note.pointer);
    check::shown(&note.text);
}

/// The pointer leads to a place of the document, or to a keyword that a place lacks.
fn pointed(pointer: &str, document: &Value, mark: &str) {
    let (tool, path) = pointer.split_once('#').unwrap_or_else(|| panic!("no pointer: {pointer}"));
    let tool = tool.trim_end_matches(": ");
    // A name that was cut or made harmless is not looked up.
    if pointer.contains(['\u{2026}', '\\']) || (tool.is_empty() && path.is_empty()) {
        return;
    }
    assert!(tool.is_empty() || !mark.is_empty(), "{pointer}");
    let schema = if tool.is_empty() {
        Some(document)
    } else {
        let named = document.as_array().and_then(|tools| tools.iter().find(|one| one["name"] == tool));
        named.and_then(|one| one.get("parameters"))
    };
    let schema = schema.unwrap_or_else(|| panic!("no such tool: {pointer}"));
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    assert!(schema.pointer(parent).is_some(), "{pointer} is no place of {document}");
}
