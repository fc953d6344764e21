//! Tool calls in GLM's form, as a grammar.
//!
//! `<tool_call>`, the name of a function, for each argument `<arg_key>`, its name, `</arg_key>`, `<arg_value>`, its value and
//! `</arg_value>`, then `</tool_call>`; with or without line breaks between (chat templates of GLM-4.5 and later). A string
//! is written bare, any other value as JSON. Arguments come in the order of their definition, required ones always.
//!
//! Refuses tools without a name or a schema of type object, and what their schemas ask for and cannot be enforced. Must hold:
//! what [`Calls`] reads back from a call is a value of the schema. Where a string may stand the first closing mark is the
//! end, so that JSON in its place holds none; other JSON ends where it ends, and a text within it may hold marks.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::builder::{Builder, NodeId};
use crate::error::{Fault, FaultCode, GrammarError, shown};
use crate::gbnf;
use crate::program::RuleId;
use crate::schema::{self, CompiledSchema, Compiler, Note, SchemaOptions, Types, Weight};
use crate::text::until;

mod calls;

pub use calls::{Call, Calls};

/// What opens a call.
pub const OPENS: &str = "<tool_call>";
const CLOSES: &str = "</tool_call>";
const KEY_OPENS: &str = "<arg_key>";
const KEY_CLOSES: &str = "</arg_key>";
const VALUE_OPENS: &str = "<arg_value>";
const VALUE_CLOSES: &str = "</arg_value>";

/// The white space of a model's calls; `None` allows a line break or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// Before the name of an argument.
    pub before_key: Option<String>,
    /// Between an argument's name and its value.
    pub before_value: Option<String>,
    /// Before the end of a call.
    pub before_close: Option<String>,
    /// Between two calls.
    pub between: Option<String>,
}

/// How a list of tools is read.
#[derive(Clone, Debug, Default)]
pub struct ToolOptions {
    /// Whether any text may stand before the first call, or in the place of calls.
    pub free: bool,
    /// Whether calls may follow each other.
    pub parallel: bool,
    /// The white space of calls.
    pub framing: Framing,
    /// How the schemas of arguments are read.
    pub schema: SchemaOptions,
}

/// Keywords of the parameters' own schema that are followed, or that say nothing about a call.
const KNOWN: &[&str] = &[
    "type",
    "properties",
    "required",
    "additionalProperties",
    "title",
    "description",
    "default",
    "examples",
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "$comment",
    "strict",
];

/// Compiles a list of objects with `name` and `parameters`, a schema of type object.
///
/// # Errors
/// Everything that is wrong with the tools or not supported, in one run. Places are the tool's name and a JSON pointer.
pub fn compile(text: &str, options: &ToolOptions) -> Result<CompiledSchema, GrammarError> {
    let mut notes = Vec::new();
    let (builder, root) = build(text, options, &mut notes)?;
    Ok(CompiledSchema { program: builder.finish(root)?, notes })
}

/// The same as GBNF text.
///
/// # Errors
/// What is wrong with the tools or not supported, or a text that is too long.
pub fn to_gbnf(text: &str, options: &ToolOptions) -> Result<String, GrammarError> {
    let (builder, root) = build(text, options, &mut Vec::new())?;
    gbnf::write(&builder, root)
}

fn build(text: &str, options: &ToolOptions, notes: &mut Vec<Note>) -> Result<(Builder, RuleId), GrammarError> {
    let document = schema::read(text)?;
    let tools =
        document.as_array().filter(|tools| !tools.is_empty()).ok_or_else(|| malformed("#", "a list of tools"))?;
    let mut builder = Builder::new();
    let (mut faults, mut names, mut bodies) = (Vec::new(), HashSet::new(), Vec::new());
    for (index, tool) in tools.iter().enumerate() {
        let name = tool.get("name").and_then(Value::as_str).unwrap_or_default();
        if name.is_empty() || name.contains(['<', '\n']) || !names.insert(name) {
            faults.push(malformed(&format!("#/{index}/name"), "a name of its own, without `<`"));
            continue;
        }
        let none = Value::Object(Map::new());
        let parameters = tool.get("parameters").filter(|parameters| !parameters.is_null()).unwrap_or(&none);
        let mut call = Written { name, builder: &mut builder, options, notes, faults: &mut faults };
        let node = call.build(parameters);
        bodies.extend(node);
        if let Some(fault) = builder.fault() {
            return Err(fault.clone().into());
        }
    }
    GrammarError::from_faults(faults)?;
    let root = assemble(&mut builder, bodies, options);
    Ok((builder, root))
}

/// The answer from the bodies of calls, which begin with the name.
fn assemble(builder: &mut Builder, bodies: Vec<NodeId>, options: &ToolOptions) -> RuleId {
    let (root, call, more) = (builder.declare("root"), builder.declare("call"), builder.declare("calls"));
    let any = builder.alternatives(bodies);
    let rest = builder.rule(more);
    let body = builder.sequence(vec![any, rest]);
    builder.define(call, body);
    let opens = builder.literal(OPENS.as_bytes());
    let call = builder.rule(call);
    let next = if options.parallel {
        let gap = gap(builder, options.framing.between.as_deref());
        let next = builder.sequence(vec![gap, opens, call]);
        builder.optional(next)
    } else {
        builder.empty()
    };
    builder.define(more, next);
    let start =
        if options.free { until(builder, OPENS.as_bytes(), call, true) } else { builder.sequence(vec![opens, call]) };
    builder.define(root, start);
    root
}

fn gap(builder: &mut Builder, known: Option<&str>) -> NodeId {
    let text = builder.literal(known.unwrap_or("\n").as_bytes());
    if known.is_some() { text } else { builder.optional(text) }
}

fn malformed(pointer: &str, expected: &str) -> Fault {
    let fault = Fault::new(FaultCode::Syntax, format!("{expected} is wanted"));
    Fault { pointer: Some(pointer.to_owned()), ..fault }
}

/// One tool while its call is built.
struct Written<'t, 'b> {
    name: &'t str,
    builder: &'b mut Builder,
    options: &'t ToolOptions,
    notes: &'b mut Vec<Note>,
    faults: &'b mut Vec<Fault>,
}

impl Written<'_, '_> {
    /// The name, the arguments and the end; `None` when something is wrong.
    fn build(&mut self, parameters: &Value) -> Option<NodeId> {
        let before = self.faults.len();
        self.check(parameters);
        let empty = Map::new();
        let properties = parameters.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required = self.required(parameters, properties);
        let mut arguments = Vec::new();
        for property in properties.keys() {
            let value = self.value(parameters, property);
            arguments.push((property.as_str(), value));
        }
        if self.faults.len() > before {
            return None;
        }
        let framing = &self.options.framing;
        let before_close = gap(self.builder, framing.before_close.as_deref());
        let closes = self.builder.literal(CLOSES.as_bytes());
        let mut rest = self.builder.sequence(vec![before_close, closes]);
        // From the last argument to the first, so that each is followed by those behind it.
        for (property, value) in arguments.into_iter().rev() {
            let Some(value) = value else { continue };
            let before_key = gap(self.builder, framing.before_key.as_deref());
            let key = self.builder.literal(format!("{KEY_OPENS}{property}{KEY_CLOSES}").as_bytes());
            let before_value = gap(self.builder, framing.before_value.as_deref());
            let opens = self.builder.literal(VALUE_OPENS.as_bytes());
            let given = self.builder.sequence(vec![before_key, key, before_value, opens, value, rest]);
            let is_required = required.contains(property);
            let body = if is_required { given } else { self.builder.alternatives(vec![given, rest]) };
            let rule = self.builder.declare("arguments");
            self.builder.define(rule, body);
            rest = self.builder.rule(rule);
        }
        let name = self.builder.literal(self.name.as_bytes());
        Some(self.builder.sequence(vec![name, rest]))
    }

    /// The value of an argument with its closing mark; `None` when no value fits or something is wrong.
    fn value(&mut self, parameters: &Value, property: &str) -> Option<NodeId> {
        let pointer = schema::below("#/properties", property);
        let mut compiler = Compiler::new(parameters, self.builder, &self.options.schema);
        let kinds = compiler.kinds(&pointer);
        let types = kinds.map_or(Types::NONE, |kinds| kinds.types);
        let bare = if types.meets(Types::STRING) { compiler.bare(&pointer, VALUE_CLOSES) } else { None };
        let json = json_of(&mut compiler, &pointer, types);
        match compiler.finish() {
            Ok(notes) => self.notes.extend(
                notes.into_iter().map(|note| Note { pointer: shown(&place_of(self.name, &note.pointer)), ..note }),
            ),
            Err(error) => {
                let own = error.faults().iter().cloned();
                let name = self.name;
                self.faults.extend(own.map(|fault| {
                    let place = fault.pointer.as_deref().unwrap_or(&pointer);
                    Fault { pointer: Some(place_of(name, place)), ..fault }
                }));
                return None;
            }
        }
        let mut parts: Vec<NodeId> = bare.into_iter().collect();
        if let Some(json) = json {
            let closes = self.builder.literal(VALUE_CLOSES.as_bytes());
            parts.push(self.builder.sequence(vec![json, closes]));
        }
        if parts.is_empty() {
            self.fault(&pointer, FaultCode::DeadEnd, "no value fits the schema");
            return None;
        }
        Some(self.builder.alternatives(parts))
    }

    fn check(&mut self, parameters: &Value) {
        let Some(map) = parameters.as_object() else {
            self.fault("#", FaultCode::Syntax, "the parameters must be a schema of type object");
            return;
        };
        if map.get("type").is_some_and(|named| named != "object") {
            self.fault("#/type", FaultCode::Syntax, "the parameters must be of type object");
        }
        if map.get("properties").is_some_and(|properties| !properties.is_object()) {
            self.fault("#/properties", FaultCode::Syntax, "`properties` must be an object");
        }
        for keyword in map.keys().filter(|keyword| !KNOWN.contains(&keyword.as_str())) {
            let place = schema::below("#", keyword);
            if self.options.schema.lenient {
                let text = format!("`{keyword}` is ignored: it is not followed for the arguments of a call");
                let pointer = shown(&place_of(self.name, &place));
                self.notes.push(Note { pointer, text: shown(&text), weight: Weight::Ignored });
            } else {
                let what = format!("`{keyword}` is not supported for the arguments of a call");
                let pointer = Some(place_of(self.name, &place));
                self.faults.push(Fault { pointer, ..Fault::new(FaultCode::Unsupported, what).fix(schema::IGNORE) });
            }
        }
        for property in map.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys) {
            if property.contains('<') {
                let place = schema::below("#/properties", property);
                self.fault(&place, FaultCode::Unsupported, "the name of an argument cannot hold `<`");
            }
        }
    }

    /// The required properties, all of which must be there.
    fn required<'p>(&mut self, parameters: &'p Value, properties: &Map<String, Value>) -> HashSet<&'p str> {
        let Some(listed) = parameters.get("required") else { return HashSet::new() };
        let names: Option<Vec<&str>> = listed.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
        let Some(names) = names else {
            self.fault("#/required", FaultCode::Syntax, "`required` must be a list of names");
            return HashSet::new();
        };
        for name in names.iter().filter(|name| !properties.contains_key(**name)) {
            let what = format!("`{name}` is required, and no property of this name is defined");
            self.fault("#/required", FaultCode::Syntax, &what);
        }
        names.into_iter().collect()
    }

    fn fault(&mut self, pointer: &str, code: FaultCode, what: &str) {
        let fault = Fault::new(code, what);
        self.faults.push(Fault { pointer: Some(place_of(self.name, pointer)), ..fault });
    }
}

/// The JSON of an argument of these types, strings aside; where one may stand, nothing in the JSON closes the argument.
fn json_of(compiler: &mut Compiler<'_, '_>, pointer: &str, types: Types) -> Option<NodeId> {
    let others = types.without(Types::STRING);
    if types.meets(Types::STRING) {
        compiler.avoid(VALUE_CLOSES);
    }
    if others.is_empty() { None } else { compiler.build_only(pointer, others) }
}

/// A place in the parameters of a function.
fn place_of(function: &str, pointer: &str) -> String {
    format!("{function}: {pointer}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Constraint, Matcher};

    const WEATHER: &str = r#"[{"name": "get_weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city", "days"]}}, {"name": "now"}]"#;

    fn matcher(text: &str, options: &ToolOptions) -> Matcher {
        Matcher::new(Arc::new(compile(text, options).unwrap().program)).unwrap()
    }

    fn accepts(text: &str, options: &ToolOptions, answer: &str) -> bool {
        let mut matcher = matcher(text, options);
        answer.bytes().all(|byte| matcher.accept(byte)) && matcher.can_end()
    }

    fn call(arguments: &[(&str, &str)]) -> String {
        let arguments: String = arguments
            .iter()
            .map(|(key, value)| format!("\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>"))
            .collect();
        format!("<tool_call>get_weather{arguments}</tool_call>")
    }

    #[test]
    fn arguments_follow_their_schemas_in_order() {
        let options = ToolOptions::default();
        assert!(accepts(WEATHER, &options, &call(&[("city", "Rome <b>"), ("days", "3")])));
        assert!(accepts(
            WEATHER,
            &options,
            &call(&[("city", ""), ("unit", "celsius"), ("days", "3")]).replace('\n', "")
        ));
        assert!(accepts(WEATHER, &options, "<tool_call>now</tool_call>"));
        for wrong in [
            call(&[("city", "Rome")]),
            call(&[("days", "3"), ("city", "Rome")]),
            call(&[("city", "Rome"), ("days", "0")]),
            call(&[("city", "Rome"), ("unit", "kelvin"), ("days", "1")]),
            "hello".to_owned(),
            "<tool_call>now</tool_call><tool_call>now</tool_call>".to_owned(),
        ] {
            assert!(!accepts(WEATHER, &options, &wrong), "{wrong}");
        }
    }

    #[test]
    fn free_text_and_more_calls_where_they_are_asked_for() {
        let options = ToolOptions { free: true, parallel: true, ..ToolOptions::default() };
        for answer in ["", "hello", "a <tool_ call", "One.<tool_call>now</tool_call>\n<tool_call>now</tool_call>"] {
            assert!(accepts(WEATHER, &options, answer), "{answer}");
        }
        for answer in ["<tool_call>", "x<tool_call>then</tool_call>", "<tool_call>now</tool_call> done"] {
            assert!(!accepts(WEATHER, &options, answer), "{answer}");
        }
    }

    #[test]
    fn a_known_framing_is_forced() {
        let some = |text: &str| Some(text.to_owned());
        let framing =
            Framing { before_key: some("\n"), before_value: some("\n"), before_close: some(""), between: some("") };
        let mut matcher = matcher(WEATHER, &ToolOptions { framing, ..ToolOptions::default() });
        assert_eq!(matcher.forced(1000), b"<tool_call>");
        assert!(b"<tool_call>g".iter().all(|byte| matcher.accept(*byte)));
        assert_eq!(matcher.forced(1000), b"et_weather\n<arg_key>city</arg_key>\n<arg_value>");
    }

    #[test]
    fn bounded_texts_are_counted() {
        let text = r#"[{"name": "get_weather", "parameters": {"properties": {"city": {"type": ["string", "null"], "maxLength": 3}}}}]"#;
        let options = ToolOptions::default();
        for (value, right) in [("Rom", true), ("null", true), ("Rome", false), ("a<b", false)] {
            assert_eq!(accepts(text, &options, &call(&[("city", value)])), right, "{value}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_tool() {
        let text = r#"[{"name": "a", "parameters": {"type": "object", "properties": {"x": {"not": {}}}, "required": ["y"],
            "minProperties": 1}}]"#;
        let error = compile(text, &ToolOptions::default()).unwrap_err();
        let places: Vec<_> = error.faults().iter().filter_map(|fault| fault.pointer.as_deref()).collect();
        assert_eq!(places, ["a: #/minProperties", "a: #/required", "a: #/properties/x/not"]);
        assert!(compile("[]", &ToolOptions::default()).is_err() && compile("{}", &ToolOptions::default()).is_err());
    }

    /// So many functions with these arguments.
    fn functions(count: usize, properties: &str) -> String {
        let one = |at| format!(r#"{{"name": "f{at}", "parameters": {{"properties": {{{properties}}}}}}}"#);
        format!("[{}]", (0..count).map(one).collect::<Vec<String>>().join(","))
    }

    #[test]
    fn texts_of_many_tools_share_their_rules() {
        let options = ToolOptions { free: true, ..ToolOptions::default() };
        let size = |count| {
            let compiled = compile(&functions(count, r#""a": {"type": "string"}, "b": {"type": "integer"}"#), &options);
            compiled.unwrap().program.ops.len()
        };
        let (some, more) = (size(100), size(200));
        assert!(more - some < 100 * 250, "{some} {more}");
        let text = functions(4000, r#""a": {"type": "string"}"#);
        let call = "<tool_call>f3999<arg_key>a</arg_key><arg_value>x</arg_value></tool_call>";
        assert!(accepts(&text, &options, call));
        let twice = functions(1, "").replace(']', r#", {"name": "f0"}]"#);
        assert_eq!(compile(&twice, &options).unwrap_err().faults()[0].pointer.as_deref(), Some("#/1/name"));
    }

    #[test]
    fn a_limit_is_said_alone_and_with_a_larger_number() {
        let arguments: Vec<String> = (0..100).map(|at| format!(r#""a{at}": {{"enum": ["{at}"]}}"#)).collect();
        let error = compile(&functions(1500, &arguments.join(",")), &ToolOptions::default()).unwrap_err();
        let [fault] = error.faults() else { panic!("{error}") };
        assert!(fault.what.ends_with(" rules") && fault.pointer.is_none(), "{fault:?}");
        assert_eq!((fault.code, fault.what.as_str()), (FaultCode::TooComplex, "too complex: 100001 rules"));
    }

    #[test]
    fn what_is_ignored_is_noted_as_such() {
        let text = r#"[{"name": "a", "parameters": {"properties": {"x": {"type": "string", "not": {}}}, "minProperties": 1}}]"#;
        let schema = SchemaOptions { lenient: true, ..SchemaOptions::default() };
        let notes = compile(text, &ToolOptions { schema, ..ToolOptions::default() }).unwrap().notes;
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes.iter().all(|note| note.weight == Weight::Ignored && note.pointer.starts_with('a')));
    }
}
