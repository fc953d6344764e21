//! Calls in a text, read back.
//!
//! The calls come in the form that the grammar of tools gives them, with any white space between the marks; a model that is
//! not bound by the grammar may write others, which are read as far as they make sense. Where the schema allows a string, the
//! text of an argument is one unless the schema allows it as JSON too. Elsewhere it is JSON, and a string where it is no JSON.
//! Where nothing can be learnt from the schema, JSON is what is JSON. What cannot be enforced is left aside.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

use super::{CLOSES, KEY_CLOSES, KEY_OPENS, OPENS, VALUE_CLOSES, VALUE_OPENS, json_of};
use crate::builder::Builder;
use crate::constraint::Constraint;
use crate::matcher::Matcher;
use crate::program::Program;
use crate::schema::{self, Compiler, SchemaOptions, Types};

/// A call of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name of the function.
    pub name: String,
    /// Its arguments, the text of a JSON object.
    pub arguments: String,
}

/// Functions whose calls are read; of their schemas only what a call asks for is looked at, once.
#[derive(Debug)]
pub struct Calls {
    functions: HashMap<String, Function>,
}

#[derive(Debug)]
struct Function {
    /// The schema; null when it cannot be read.
    parameters: Value,
    arguments: Mutex<HashMap<String, Arc<Argument>>>,
}

/// How an argument is read.
#[derive(Debug)]
struct Argument {
    /// Whether it may be a bare string, which ends at the first mark.
    bare: bool,
    json: Json,
}

/// Which JSON texts stand for values.
#[derive(Debug)]
enum Json {
    None,
    Any,
    Of(Arc<Program>),
}

impl Calls {
    /// Functions by their names and the JSON texts of their parameters.
    pub fn new<'t>(functions: impl IntoIterator<Item = (&'t str, &'t str)>) -> Self {
        let function =
            |text| Function { parameters: schema::read(text).unwrap_or_default(), arguments: Mutex::default() };
        Self { functions: functions.into_iter().map(|(name, text)| (name.to_owned(), function(text))).collect() }
    }

    /// The calls that a text begins with, and what follows them.
    ///
    /// A call that is not complete, or of a function that is not known, belongs to what follows.
    pub fn read<'t>(&self, text: &'t str) -> (Vec<Call>, &'t str) {
        let (mut calls, mut rest) = (Vec::new(), text);
        while let Some((call, behind)) = self.call(rest) {
            calls.push(call);
            rest = behind;
        }
        (calls, rest)
    }

    fn call<'t>(&self, text: &'t str) -> Option<(Call, &'t str)> {
        let text = text.trim_start().strip_prefix(OPENS)?;
        let (name, mut rest) = text.split_at(text.find('<')?);
        let name = name.trim();
        let function = self.functions.get(name)?;
        let mut arguments: Vec<(&str, String)> = Vec::new();
        loop {
            rest = rest.trim_start();
            if let Some(behind) = rest.strip_prefix(CLOSES) {
                let members: Vec<_> =
                    arguments.iter().map(|(key, value)| format!("{}: {value}", quoted(key))).collect();
                let arguments = format!("{{{}}}", members.join(", "));
                return Some((Call { name: name.to_owned(), arguments }, behind));
            }
            let (key, behind) = rest.strip_prefix(KEY_OPENS)?.split_once(KEY_CLOSES)?;
            let text = behind.trim_start().strip_prefix(VALUE_OPENS)?;
            let key = if function.knows(key) { key } else { key.trim() };
            let argument = function.argument(key);
            let end = argument.end(text)?;
            let value = argument.value(&text[..end]);
            match arguments.iter_mut().find(|(known, _)| *known == key) {
                Some((_, known)) => *known = value,
                None => arguments.push((key, value)),
            }
            rest = &text[end + VALUE_CLOSES.len()..];
        }
    }
}

impl Function {
    fn knows(&self, property: &str) -> bool {
        self.parameters.get("properties").is_some_and(|properties| properties.get(property).is_some())
    }

    fn argument(&self, property: &str) -> Arc<Argument> {
        let mut known = self.arguments.lock().unwrap_or_else(PoisonError::into_inner);
        let compiled = || Arc::new(Argument::compile(&self.parameters, property));
        Arc::clone(known.entry(property.to_owned()).or_insert_with(compiled))
    }
}

impl Argument {
    fn compile(parameters: &Value, property: &str) -> Self {
        let pointer = schema::below("#/properties", property);
        let options = SchemaOptions { lenient: true, ..SchemaOptions::default() };
        let kinds = schema::kinds(parameters, &pointer, &options);
        let types = kinds.map_or(Types::NONE, |kinds| kinds.types);
        let json = if types.is_empty() || !types.meets(Types::STRING) {
            Json::Any
        } else if types == Types::STRING {
            Json::None
        } else {
            let mut builder = Builder::new();
            let mut compiler = Compiler::new(parameters, &mut builder, &options);
            let body = json_of(&mut compiler, &pointer, types);
            let body = compiler.finish().ok().and(body);
            let root = builder.declare("root");
            let program = body.and_then(|body| {
                builder.define(root, body);
                builder.finish(root).ok()
            });
            program.map_or(Json::Any, |program| Json::Of(Arc::new(program)))
        };
        Self { bare: types.is_empty() || types.meets(Types::STRING), json }
    }

    /// Where the closing mark of the value lies with which the text begins; `None` when there is none yet.
    fn end(&self, text: &str) -> Option<usize> {
        let first = text.find(VALUE_CLOSES)?;
        if self.bare {
            return Some(first);
        }
        let mut values = Deserializer::from_str(text).into_iter::<IgnoredAny>();
        match values.next()? {
            Ok(_) => {
                let behind = text[values.byte_offset()..].trim_start();
                Some(if behind.starts_with(VALUE_CLOSES) { text.len() - behind.len() } else { first })
            }
            // The mark lies in a text that goes on.
            Err(fault) if fault.is_eof() => None,
            Err(_) => Some(first),
        }
    }

    /// The JSON text of the value that a text stands for.
    fn value(&self, text: &str) -> String {
        let is_json = serde_json::from_str::<IgnoredAny>(text).is_ok()
            && match &self.json {
                Json::None => false,
                Json::Any => true,
                Json::Of(program) => fits(program, text),
            };
        if is_json { text.trim().to_owned() } else { quoted(text) }
    }
}

/// Whether a JSON text belongs to a grammar without white space.
fn fits(program: &Arc<Program>, json: &str) -> bool {
    let Ok(mut matcher) = Matcher::new(Arc::clone(program)) else { return false };
    let (mut quoted, mut escaped) = (false, false);
    for byte in json.bytes() {
        let is_quote = byte == b'"' && !escaped;
        escaped = quoted && byte == b'\\' && !escaped;
        quoted ^= is_quote;
        let is_space = !quoted && byte.is_ascii_whitespace();
        if !is_space && !matcher.accept(byte) {
            return false;
        }
    }
    matcher.can_end()
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::{ToolOptions, compile};

    /// A call of `f` with these arguments.
    fn call(arguments: &[(&str, &str)]) -> String {
        let pairs = arguments
            .iter()
            .map(|(key, value)| format!("{KEY_OPENS}{key}{KEY_CLOSES}{VALUE_OPENS}{value}{VALUE_CLOSES}"));
        format!("{OPENS}f{}{CLOSES}", pairs.collect::<String>())
    }

    /// Whether the grammar accepts a call with one argument `a` of a schema, and the arguments that are read from it.
    fn read(schema: &str, value: &str) -> (bool, Option<String>) {
        let parameters = format!(r#"{{"type": "object", "properties": {{"a": {schema}}}, "required": ["a"]}}"#);
        let tools = format!(r#"[{{"name": "f", "parameters": {parameters}}}]"#);
        let text = call(&[("a", value)]);
        let program = compile(&tools, &ToolOptions::default()).unwrap().program;
        let mut matcher = Matcher::new(Arc::new(program)).unwrap();
        let accepted = text.bytes().all(|byte| matcher.accept(byte)) && matcher.can_end();
        let calls = Calls::new([("f", parameters.as_str())]);
        let (found, rest) = calls.read(&text);
        (accepted, found.first().filter(|_| rest.is_empty()).map(|call| call.arguments.clone()))
    }

    #[test]
    fn a_text_is_json_where_the_schema_takes_it_as_such() {
        let pairs =
            r#"{"anyOf": [{"type": "string"}, {"type": "array", "minItems": 2, "items": {"type": "integer"}}]}"#;
        for (schema, value, arguments) in [
            (pairs, "[1]", r#"{"a": "[1]"}"#),
            (pairs, "[1,2]", r#"{"a": [1,2]}"#),
            (r#"{"type": ["string", "number"]}"#, "1e400", r#"{"a": "1e400"}"#),
            (r#"{"type": ["string", "integer"], "minimum": 5}"#, "3", r#"{"a": "3"}"#),
            (r#"{"type": ["string", "integer"], "minimum": 5}"#, "7", r#"{"a": 7}"#),
            (r#"{"type": "string"}"#, "7\n\"", r#"{"a": "7\n\""}"#),
            (r#"{"type": "array"}"#, r#"["</arg_value>"]"#, r#"{"a": ["</arg_value>"]}"#),
        ] {
            assert_eq!(read(schema, value), (true, Some(arguments.to_owned())), "{schema} {value}");
        }
        assert_eq!(read(pairs, "[1, 2]").1.as_deref(), Some(r#"{"a": [1, 2]}"#), "white space is free");
    }

    #[test]
    fn where_a_string_may_stand_no_json_holds_the_mark() {
        for schema in [
            "{}",
            r#"{"type": ["string", "object"]}"#,
            r#"{"type": ["string", "object"], "additionalProperties": {"maxLength": 99}}"#,
            r#"{"anyOf": [{"type": "string"}, {"const": {"k": "</arg_value>"}}]}"#,
        ] {
            assert!(!read(schema, r#"{"k":"</arg_value>"}"#).0, "{schema}");
            let escaped = r#"{"k":"\u003c/arg_value>"}"#;
            assert_eq!(read(schema, escaped), (true, Some(format!(r#"{{"a": {escaped}}}"#))), "{schema}");
        }
    }

    #[test]
    fn numbers_and_nesting_have_no_bound() {
        let (digits, deep) = ("9".repeat(5000), format!("{}{}", "[".repeat(2000), "]".repeat(2000)));
        for (schema, value) in [(r#"{"type": "integer"}"#, &digits), (r#"{"type": "array"}"#, &deep), ("{}", &deep)] {
            assert_eq!(read(schema, value), (true, Some(format!(r#"{{"a": {value}}}"#))), "{schema}");
        }
    }

    #[test]
    fn calls_are_read_up_to_what_is_none() {
        let calls = Calls::new([("f", r#"{"properties": {" a ": {"type": "string"}, "b": {"type": "array"}}}"#)]);
        let text = format!("\n{}\n{} x", call(&[(" a ", "1"), ("b", "[]")]), call(&[(" b ", "[1]"), ("b", "2")]));
        let (found, rest) = calls.read(&text);
        let arguments: Vec<_> = found.iter().map(|call| call.arguments.as_str()).collect();
        assert_eq!((arguments, rest), (vec![r#"{" a ": "1", "b": []}"#, r#"{"b": 2}"#], " x"));
        for cut in [call(&[("b", "[\"")]), call(&[]).replace("f<", "g<"), call(&[("b", "1")]).replace("</tool", "")] {
            assert_eq!(calls.read(&cut), (Vec::new(), cut.as_str()));
        }
    }

    #[test]
    fn what_the_schema_does_not_say_is_json_where_it_is_json() {
        let calls = Calls::new([("f", "no JSON"), ("g", r##"{"properties": {"a": {"$ref": "#/nowhere"}}}"##)]);
        for name in ["f", "g"] {
            for (value, arguments) in [("[1]", r#"{"a": [1]}"#), ("x", r#"{"a": "x"}"#)] {
                let text = call(&[("a", value)]).replace(">f<", &format!(">{name}<"));
                assert_eq!(calls.read(&text).0[0].arguments, arguments);
            }
        }
    }
}
