//! Options of Python, read into the core's types.

use colibri_engine::EngineConfig;
use colibri_engine::convert::ConvertOptions as EngineConvertOptions;
use colibri_kernels::{Format, Numerics, ScaleRule};
use colibri_store::{ContextRequest, IoRequest, RamLimit, SourceKind};
use pyo3::prelude::*;

use crate::error::{from_store, invalid};

/// A number, or text.
#[derive(FromPyObject)]
pub(crate) enum NumberOrText {
    /// A number.
    Number(u64),
    /// Text.
    Text(String),
}

/// How a model is opened.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct OpenOptions {
    pub(crate) config: EngineConfig,
}

#[pymethods]
impl OpenOptions {
    #[new]
    fn new(
        ram: NumberOrText,
        ctx: NumberOrText,
        threads: Option<usize>,
        io: &str,
        numerics: &str,
        kernels: String,
    ) -> PyResult<Self> {
        let ram = match ram {
            NumberOrText::Number(0) => return Err(invalid("ram", "0", "a number of bytes above 0")),
            NumberOrText::Number(bytes) => RamLimit::Bytes(bytes),
            NumberOrText::Text(text) => RamLimit::parse(&text).map_err(|error| from_store(&error))?,
        };
        let io = match io {
            "auto" => IoRequest::Auto,
            name => IoRequest::Kind(
                SourceKind::parse(name).ok_or_else(|| invalid("io", name, "auto, direct, buffered or mmap"))?,
            ),
        };
        if threads == Some(0) {
            return Err(invalid("threads", "0", "an integer above 0"));
        }
        let numerics =
            Numerics::parse(numerics).ok_or_else(|| invalid("numerics", numerics, "quantized, a8 or f32"))?;
        let context = context(ctx)?;
        let config = EngineConfig { ram, context, threads, io, numerics, kernels, ..EngineConfig::default() };
        Ok(Self { config })
    }
}

/// How a checkpoint is converted.
#[pyclass(frozen, module = "colibri._native")]
pub(crate) struct ConvertOptions {
    pub(crate) options: EngineConvertOptions,
}

#[pymethods]
impl ConvertOptions {
    #[new]
    #[pyo3(signature = (experts, dense, embeddings, mtp, scale_rule, keep_mtp, workers=None,
        repack=false, verify=false, delete_source=false, source_name=None))]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools, reason = "one argument for each field")]
    fn new(
        experts: &str,
        dense: &str,
        embeddings: &str,
        mtp: &str,
        scale_rule: &str,
        keep_mtp: bool,
        workers: Option<usize>,
        repack: bool,
        verify: bool,
        delete_source: bool,
        source_name: Option<String>,
    ) -> PyResult<Self> {
        let scale_rule = match scale_rule {
            "search" => ScaleRule::Search,
            "absmax" => ScaleRule::AbsMax,
            other => return Err(invalid("scale_rule", other, "search or absmax")),
        };
        let options = EngineConvertOptions {
            experts: format("experts", experts)?,
            dense: format("dense", dense)?,
            embeddings: format("embeddings", embeddings)?,
            mtp: format("mtp", mtp)?,
            scale_rule,
            keep_mtp,
            repack,
            verify,
            delete_source,
            workers: workers.unwrap_or(0),
            source_name,
        };
        Ok(Self { options })
    }
}

/// The context that is asked for.
fn context(value: NumberOrText) -> PyResult<ContextRequest> {
    let expected = "auto or a number of tokens above 0";
    let tokens = match &value {
        NumberOrText::Text(text) if text == "auto" => return Ok(ContextRequest::Auto),
        NumberOrText::Text(text) => text.parse().map_err(|_| invalid("ctx", text, expected))?,
        NumberOrText::Number(tokens) => *tokens,
    };
    match u32::try_from(tokens) {
        Ok(tokens) if tokens > 0 => Ok(ContextRequest::Tokens(tokens)),
        _ => Err(invalid("ctx", &tokens.to_string(), expected)),
    }
}

/// A weight format by its name.
fn format(name: &str, value: &str) -> PyResult<Format> {
    Format::parse(value).ok_or_else(|| invalid(name, value, "q4g64, q4row, q3g64, q8 or f32"))
}
