//! Grammars, and the position of a text of tokens in one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use colibri_engine::{EngineError, TokenGrammar, Vocabulary as EngineVocabulary};
use colibri_grammar::schema::{self, CompiledSchema, Note, SchemaOptions, Whitespace};
use colibri_grammar::tools::{self, Framing, ToolOptions};
use colibri_grammar::{ByteSet, Constraint, GrammarError, Matcher, Program, SpecialId, TokenMask, gbnf, regex};
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::error::{detached, invalid};
use crate::watch::Signals;

/// A compiled language over bytes.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct Grammar {
    program: Arc<Program>,
    source: Source,
    notes: Vec<Note>,
}

/// What a grammar was compiled from.
enum Source {
    Gbnf(String),
    Pattern(String),
    Schema(String, SchemaOptions),
    Tools(String, ToolOptions),
}

impl Grammar {
    fn of(compiled: CompiledSchema, source: Source) -> Self {
        Self { program: Arc::new(compiled.program), source, notes: compiled.notes }
    }

    /// Walks as far into a text as the language goes, then asks something of the place if that is its end.
    fn at_end_of<T: Send + pyo3::marker::Ungil>(
        &self,
        py: Python<'_>,
        text: &[u8],
        ask: impl FnOnce(&mut Matcher, &mut Signals) -> PyResult<T> + Send + pyo3::marker::Ungil,
    ) -> PyResult<(usize, Option<T>)> {
        let walked = detached(py, || {
            let mut matcher = Matcher::new(Arc::clone(&self.program)).map_err(GrammarError::new)?;
            // A byte of an ambiguous grammar may take long.
            let (mut signals, mut taken) = (Signals::new(), 0);
            while taken < text.len() && matcher.accept(text[taken]) {
                taken += 1;
                if let Err(raised) = signals.check() {
                    return Ok(Err(raised));
                }
            }
            if let Some(fault) = matcher.fault() {
                return Err(EngineError::Grammar(fault.clone().into()));
            }
            let answer = (taken == text.len()).then(|| ask(&mut matcher, &mut signals)).transpose();
            Ok(answer.map(|answer| (taken, answer)))
        });
        walked?
    }
}

#[pymethods]
impl Grammar {
    /// Compiles GBNF; the start is `root`.
    #[staticmethod]
    fn from_gbnf(py: Python<'_>, text: &str) -> PyResult<Self> {
        let program = detached(py, || Ok(gbnf::compile(text)?))?;
        Ok(Self { program: Arc::new(program), source: Source::Gbnf(text.to_owned()), notes: Vec::new() })
    }

    /// Compiles a pattern that the whole text must match.
    #[staticmethod]
    fn from_regex(py: Python<'_>, pattern: &str) -> PyResult<Self> {
        let program = detached(py, || Ok(regex::compile(pattern)?))?;
        Ok(Self { program: Arc::new(program), source: Source::Pattern(pattern.to_owned()), notes: Vec::new() })
    }

    /// Compiles a JSON schema; `lenient` ignores what cannot be enforced and notes it.
    #[staticmethod]
    #[pyo3(signature = (text, lenient=false, whitespace="compact"))]
    fn from_json_schema(py: Python<'_>, text: &str, lenient: bool, whitespace: &str) -> PyResult<Self> {
        let options = schema_options(lenient, whitespace)?;
        let compiled = detached(py, || Ok(schema::compile(text, &options)?))?;
        Ok(Self::of(compiled, Source::Schema(text.to_owned(), options)))
    }

    /// Compiles tools, a JSON list of `name` and `parameters`, to answers with calls in GLM's form.
    ///
    /// With `free` any text may stand before calls; `parallel` allows several. `framing` is the white space before an
    /// argument's name, before its value, before the end of a call, and between calls; without it a line break may stand
    /// there.
    #[staticmethod]
    #[pyo3(signature = (text, free=false, parallel=true, lenient=false, whitespace="compact", framing=None))]
    fn from_tools(
        py: Python<'_>,
        text: &str,
        free: bool,
        parallel: bool,
        lenient: bool,
        whitespace: &str,
        framing: Option<(String, String, String, String)>,
    ) -> PyResult<Self> {
        let framing = framing.map_or_else(Framing::default, |(key, value, close, between)| Framing {
            before_key: Some(key),
            before_value: Some(value),
            before_close: Some(close),
            between: Some(between),
        });
        let options = ToolOptions { free, parallel, framing, schema: schema_options(lenient, whitespace)? };
        let compiled = detached(py, || Ok(tools::compile(text, &options)?))?;
        Ok(Self::of(compiled, Source::Tools(text.to_owned(), options)))
    }

    /// The grammar as GBNF text, `root` first.
    fn to_gbnf(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || {
            Ok(match &self.source {
                Source::Gbnf(text) => text.clone(),
                Source::Pattern(pattern) => regex::to_gbnf(pattern)?,
                Source::Schema(text, options) => schema::to_gbnf(text, options)?,
                Source::Tools(text, options) => tools::to_gbnf(text, options)?,
            })
        })
    }

    /// What the author of a schema should know: JSON pointer, text, and its weight: `usual`, `remark` or `ignored`.
    fn notes(&self) -> Vec<(&str, &str, &'static str)> {
        self.notes.iter().map(|note| (note.pointer.as_str(), note.text.as_str(), note.weight.slug())).collect()
    }

    /// How many of the bytes, from the first on, are the beginning of a text of the language.
    fn matched(&self, py: Python<'_>, text: &[u8]) -> PyResult<usize> {
        self.at_end_of(py, text, |_, _| Ok(())).map(|(taken, _)| taken)
    }

    /// Whether the bytes are a text of the language.
    fn accepts(&self, py: Python<'_>, text: &[u8]) -> PyResult<bool> {
        self.can_end(py, text)
    }

    /// The same as `accepts`, said of a prefix.
    fn can_end(&self, py: Python<'_>, prefix: &[u8]) -> PyResult<bool> {
        self.at_end_of(py, prefix, |matcher, _| Ok(matcher.can_end())).map(|(_, end)| end == Some(true))
    }

    /// The bytes that may follow, in rising order; none when the prefix does not fit.
    fn allowed<'py>(&self, py: Python<'py>, prefix: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let (_, allowed) = self.at_end_of(py, prefix, |matcher, _| Ok(matcher.allowed()))?;
        Ok(bytes(py, &allowed.unwrap_or_default()))
    }

    /// The special tokens of which one may follow, as the grammar names them; none when the prefix does not fit.
    fn specials(&self, py: Python<'_>, prefix: &[u8]) -> PyResult<Vec<String>> {
        let (_, specials) = self.at_end_of(py, prefix, |matcher, _| {
            let allowed: Vec<SpecialId> = matcher.allowed_specials().collect();
            let named = matcher.program().special_ids().filter(|(id, _)| allowed.contains(id));
            Ok(named.map(|(_, special)| special.to_string()).collect::<Vec<String>>())
        })?;
        Ok(specials.unwrap_or_default())
    }

    /// The bytes that must follow, at most `limit`; none when the prefix does not fit.
    #[pyo3(signature = (prefix, limit=65536))]
    fn forced<'py>(&self, py: Python<'py>, prefix: &[u8], limit: usize) -> PyResult<Bound<'py, PyBytes>> {
        let (_, forced) = self.at_end_of(py, prefix, |matcher, signals| forced(matcher, limit, signals))?;
        Ok(PyBytes::new(py, &forced.unwrap_or_default()))
    }
}

/// Functions whose calls are read out of texts.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct Calls {
    calls: tools::Calls,
}

#[pymethods]
impl Calls {
    /// Functions by their names, and the JSON texts of their parameters.
    #[new]
    fn new(py: Python<'_>, functions: Vec<(String, String)>) -> PyResult<Self> {
        let pairs = || functions.iter().map(|(name, parameters)| (name.as_str(), parameters.as_str()));
        Ok(Self { calls: detached(py, || Ok(tools::Calls::new(pairs())))? })
    }

    /// The calls that a text begins with, each with its name and the JSON text of its arguments, and what follows them.
    fn read(&self, py: Python<'_>, text: &str) -> PyResult<(Vec<(String, String)>, String)> {
        detached(py, || {
            let (calls, rest) = self.calls.read(text);
            Ok((calls.into_iter().map(|call| (call.name, call.arguments)).collect(), rest.to_owned()))
        })
    }
}

/// The bytes that must follow, at most `limit`, found in pieces between which signals are looked for.
fn forced(matcher: &mut Matcher, limit: usize, signals: &mut Signals) -> PyResult<Vec<u8>> {
    const PIECE: usize = 64;
    let mut bytes = Vec::new();
    loop {
        let size = PIECE.min(limit - bytes.len());
        let piece = matcher.forced(size);
        bytes.extend_from_slice(&piece);
        let whole = piece.len() == size && piece.iter().all(|byte| matcher.accept(*byte));
        if size == 0 || !whole {
            return Ok(bytes);
        }
        signals.check()?;
    }
}

/// The bytes of every token, and the special tokens, which no text produces.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct Vocabulary {
    vocabulary: Arc<EngineVocabulary>,
}

#[pymethods]
impl Vocabulary {
    #[new]
    fn new(py: Python<'_>, token_bytes: Vec<PyBackedBytes>, special: BTreeMap<String, u32>) -> PyResult<Self> {
        let vocabulary = detached(py, || EngineVocabulary::new(&token_bytes, special))?;
        Ok(Self { vocabulary: Arc::new(vocabulary) })
    }

    fn __len__(&self) -> usize {
        self.vocabulary.len()
    }

    /// Bytes of every token's text, [tokens]; none for special tokens.
    fn lengths<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        let lengths = (0..self.vocabulary.len() as u32).map(|token| self.vocabulary.text(token).len() as i64);
        PyArray1::from_vec(py, lengths.collect())
    }
}

/// A position in a grammar, moved token by token.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct GrammarState {
    state: Mutex<TokenGrammar>,
}

impl GrammarState {
    fn lock(&self) -> MutexGuard<'_, TokenGrammar> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tokens that may follow. Called without the interpreter lock.
    pub(crate) fn allowed(&self) -> Result<Arc<TokenMask>, EngineError> {
        self.lock().mask()
    }
}

#[pymethods]
impl GrammarState {
    #[new]
    fn new(
        py: Python<'_>,
        grammar: &Bound<'_, Grammar>,
        vocabulary: &Bound<'_, Vocabulary>,
        stop_ids: Vec<u32>,
    ) -> PyResult<Self> {
        let (program, vocabulary) = (&grammar.get().program, &vocabulary.get().vocabulary);
        let state = detached(py, || TokenGrammar::new(Arc::clone(program), Arc::clone(vocabulary), &stop_ids))?;
        Ok(Self { state: Mutex::new(state) })
    }

    /// Which tokens may follow, [tokens of the vocabulary].
    fn mask<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let mask = detached(py, || {
            let mask = self.allowed()?;
            Ok((0..mask.len() as u32).map(|token| mask.allows(token)).collect())
        })?;
        Ok(PyArray1::from_vec(py, mask))
    }

    /// Lets only this token follow until the position moves; False, and nothing changed, when it may not follow.
    fn narrow(&self, py: Python<'_>, token: u32) -> PyResult<bool> {
        detached(py, || self.lock().narrow(token))
    }

    /// How many tokens may follow, and the only one where it is one.
    fn mask_counts(&self, py: Python<'_>) -> PyResult<(usize, Option<u32>)> {
        detached(py, || {
            let mask = self.allowed()?;
            let count = mask.count();
            Ok((count, if count == 1 { mask.iter().next() } else { None }))
        })
    }

    /// Whether the token may follow.
    fn allows(&self, py: Python<'_>, token: u32) -> PyResult<bool> {
        detached(py, || {
            let mut state = self.lock();
            let length = state.len();
            let accepted = state.accept(token)?;
            state.rewind(length);
            Ok(accepted)
        })
    }

    /// Takes a token; False, and nothing changed, when it may not follow.
    fn accept(&self, py: Python<'_>, token: u32) -> PyResult<bool> {
        detached(py, || self.lock().accept(token))
    }

    /// Takes bytes as text, whatever tokens they spell, each as if it were a token; False, and nothing changed, when they
    /// may not follow.
    fn accept_text(&self, py: Python<'_>, text: &[u8]) -> PyResult<bool> {
        let accepted = detached(py, || {
            let (mut state, mut signals) = (self.lock(), Signals::new());
            let length = state.len();
            for byte in text {
                let outcome = state.accept_byte(*byte);
                let raised = signals.check().err();
                if raised.is_some() || !matches!(outcome, Ok(true)) {
                    state.rewind(length);
                    return raised.map_or(outcome.map(Ok), |raised| Ok(Err(raised)));
                }
            }
            Ok(Ok(true))
        });
        accepted?
    }

    /// The bytes that must follow, at most `limit`; none where the text can end.
    fn forced<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyBytes>> {
        let forced = detached(py, || Ok(self.lock().forced(limit)))?;
        Ok(PyBytes::new(py, &forced))
    }

    /// The bytes that may follow, in rising order.
    fn allowed_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let allowed = detached(py, || Ok(self.lock().allowed_bytes()))?;
        Ok(bytes(py, &allowed))
    }

    /// Whether the text can end here; True once it has.
    #[getter]
    fn can_end(&self, py: Python<'_>) -> PyResult<bool> {
        detached(py, || Ok(self.lock().can_end()))
    }

    /// Whether a stop token was taken.
    #[getter]
    fn finished(&self, py: Python<'_>) -> PyResult<bool> {
        detached(py, || Ok(self.lock().finished()))
    }

    /// How many tokens were taken.
    #[getter]
    fn length(&self, py: Python<'_>) -> PyResult<usize> {
        detached(py, || Ok(self.lock().len()))
    }

    /// Goes back to where `length` tokens were taken.
    fn rewind(&self, py: Python<'_>, length: usize) -> PyResult<()> {
        detached(py, || {
            self.lock().rewind(length);
            Ok(())
        })
    }
}

fn schema_options(lenient: bool, whitespace: &str) -> PyResult<SchemaOptions> {
    let whitespace = match whitespace {
        "compact" => Whitespace::Compact,
        "flexible" => Whitespace::Flexible,
        other => return Err(invalid("whitespace", other, "compact or flexible")),
    };
    Ok(SchemaOptions { lenient, whitespace })
}

fn bytes<'py>(py: Python<'py>, set: &ByteSet) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &set.iter().collect::<Vec<u8>>())
}
