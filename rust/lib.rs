//! colibri: run frontier mixture-of-experts language models on the PC you own.
pub use colibri_engine as engine;
pub use colibri_grammar as grammar;
pub use colibri_kernels as kernels;
pub use colibri_store as store;
