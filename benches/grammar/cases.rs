//! The grammars that are measured, in the words of both engines, with texts of them.

use colibri::grammar::schema::{self, SchemaOptions};
use colibri::grammar::{Program, gbnf};
use serde_json::{Map, Value, json};

/// A grammar in the words of this crate and in those of llguidance.
#[derive(Clone)]
pub(crate) enum Source {
    /// The same language, once as GBNF and once as Lark.
    Twins { gbnf: String, lark: String },
    /// A JSON schema, without white space between the signs.
    Schema { text: String, value: Value },
}

impl Source {
    fn schema(value: Value) -> Self {
        Self::Schema { text: value.to_string(), value }
    }

    /// The grammar compiled by this crate.
    pub(crate) fn program(&self) -> Program {
        match self {
            Self::Twins { gbnf, .. } => gbnf::compile(gbnf).expect("a grammar"),
            Self::Schema { text, .. } => schema::compile(text, &SchemaOptions::default()).expect("a schema").program,
        }
    }
}

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) source: Source,
    /// Texts of the language.
    pub(crate) texts: Vec<String>,
}

const JSON_GBNF: &str = r#"root ::= ws value
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (pair ("," ws pair)*)? "}" ws
pair ::= string ":" ws value
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= [ \t\n]*
"#;

const JSON_LARK: &str = r#"start: ws value
value: object | array | string | number | ("true" | "false" | "null") ws
object: "{" ws (pair ("," ws pair)*)? "}" ws
pair: string ":" ws value
array: "[" ws (value ("," ws value)*)? "]" ws
string: STRING ws
number: NUMBER ws
ws: WS?
STRING: /"([^"\\\x00-\x1F]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/
WS: /[ \t\n]+/
"#;

const SENTENCES: [&str; 6] = [
    "The quick brown fox jumps over the lazy dog.",
    "A small robot found a map under the old bridge, and followed it to the sea.",
    "Überraschung: die Straße ist gesperrt — bitte warten.",
    "She said: \"it will be all right\" and closed the door.",
    "线路已经恢复，请稍后再试。",
    "path C:\\temp\\log.txt, 42 lines\nsecond line",
];

fn json_texts() -> Vec<String> {
    let person = |n: usize| {
        json!({"name": SENTENCES[n % 6], "born": 1815 + n, "tags": ["mathematician", "writer", SENTENCES[(n + 2) % 6]],
               "score": 2.5e-3 * n as f64, "nested": {"deep": [[1, [2.5, null]], {"x": SENTENCES[(n + 3) % 6]}]}, "ok": n.is_multiple_of(2)})
    };
    let all: Vec<Value> = (0..24).map(person).collect();
    let mut texts: Vec<String> = all.iter().map(Value::to_string).collect();
    texts.push(serde_json::to_string_pretty(&all[..4]).expect("text"));
    texts
}

/// Fifty fields of all types, some of them optional, and values for them.
fn fifty_fields() -> (Value, Vec<String>) {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for n in 0..50 {
        let schema = match n % 8 {
            0 => json!({"type": "string"}),
            1 => json!({"type": "integer"}),
            2 => json!({"type": "string", "maxLength": 120}),
            3 => json!({"type": "number"}),
            4 => json!({"type": "array", "items": {"type": "string"}}),
            5 => json!({"type": "boolean"}),
            6 => json!({"enum": ["red", "green", "blue", "dark grey"]}),
            _ => json!({"type": "object", "properties": {"id": {"type": "integer"}, "label": {"type": "string"}},
                        "required": ["id", "label"], "additionalProperties": false}),
        };
        let name = format!("field_{n:02}");
        if n % 3 != 2 {
            required.push(name.clone());
        }
        properties.insert(name, schema);
    }
    let value = |n: usize, round: usize| match n % 8 {
        0 | 2 => json!(SENTENCES[(n + round) % 6]),
        1 => json!(n * 1000 + round),
        3 => json!((n * 1000 + round) as f64 / 8.0),
        4 => json!([SENTENCES[(n + round) % 6], "short", ""]),
        5 => json!(round.is_multiple_of(2)),
        6 => json!(["red", "green", "blue", "dark grey"][(n + round) % 4]),
        _ => json!({"id": n + round, "label": SENTENCES[(n + round) % 6]}),
    };
    let texts = (0..6)
        .map(|round| {
            let fields = (0..50).filter(|n| n % 3 != 2 || (n + round) % 2 == 0);
            let fields: Map<String, Value> = fields.map(|n| (format!("field_{n:02}"), value(n, round))).collect();
            Value::Object(fields).to_string()
        })
        .collect();
    let schema =
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    (schema, texts)
}

fn two_hundred_values() -> (Value, Vec<String>) {
    let kinds = ["city", "river", "mountain", "harbour", "station"];
    let names: Vec<String> = (0..200).map(|n| format!("{} of the {n}th {}", kinds[n % 5], kinds[n / 40])).collect();
    let texts = names.iter().step_by(9).map(|name| json!({"place": name, "other": name}).to_string()).collect();
    let one = json!({"enum": names});
    let schema = json!({"type": "object", "properties": {"place": one, "other": one}, "required": ["place", "other"],
                        "additionalProperties": false});
    (schema, texts)
}

/// Lists in lists, with words and numbers at every depth.
fn deep() -> Case {
    let gbnf = "root ::= \"[\" (root (\",\" root)*)? \"]\" | word | number\nword ::= \"'\" [a-z ]* \"'\"\n\
                number ::= [0-9]+\n";
    let lark = "start: \"[\" (start (\",\" start)*)? \"]\" | WORD | NUMBER\nWORD: /'[a-z ]*'/\nNUMBER: /[0-9]+/\n";
    let depths = [40, 200, 600];
    let texts = depths.map(|depth| {
        let open: String = (0..depth).map(|n| ["[", "['a short word',", "[7,"][n % 3]).collect();
        open + "1" + &"]".repeat(depth)
    });
    Case {
        name: "deep recursion",
        source: Source::Twins { gbnf: gbnf.to_owned(), lark: lark.to_owned() },
        texts: texts.to_vec(),
    }
}

/// Text of exactly so many characters.
fn prose(characters: usize) -> String {
    let sentences = SENTENCES.map(|sentence| sentence.replace('\n', " ") + " ").concat();
    sentences.chars().cycle().take(characters).collect()
}

pub(crate) fn all() -> Vec<Case> {
    let (fifty, fifty_texts) = fifty_fields();
    let (values, values_texts) = two_hundred_values();
    vec![
        Case {
            name: "JSON",
            source: Source::Twins { gbnf: JSON_GBNF.to_owned(), lark: JSON_LARK.to_owned() },
            texts: json_texts(),
        },
        Case { name: "schema, 50 fields", source: Source::schema(fifty), texts: fifty_texts },
        Case { name: "enum, 200 values", source: Source::schema(values), texts: values_texts },
        Case {
            name: ".{0,5000}",
            source: Source::Twins {
                gbnf: "root ::= .{0,5000}\n".to_owned(),
                lark: "start: /(?s:.{0,5000})/\n".to_owned(),
            },
            texts: vec![prose(5000), prose(3000)],
        },
        deep(),
    ]
}
