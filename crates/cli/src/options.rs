/// An option that a program understands, written `--name`.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Without the two dashes.
    pub(crate) name: &'static str,
    /// What the help calls its value; `None` for an option without one.
    pub(crate) value: Option<&'static str>,
    /// What it does, as the help says it.
    pub(crate) about: &'static str,
    /// Whether a verb that has it fails without it.
    pub(crate) required: bool,
}

impl OptionSpec {
    /// Prints JSON instead of a table.
    pub const JSON: Self = Self::flag("json", "print JSON, for programs");
    /// Does what the verb only shows without it.
    pub const YES: Self = Self::flag("yes", "do it; without, the verb only shows what it would do");
    /// Draws the map of a pool in ASCII.
    pub const ASCII: Self = Self::flag("ascii", "draw the map without Unicode blocks");
    /// Releases what a container holds.
    pub const OWNER: Self = Self::with_value(
        "owner",
        "OWNER",
        "instead of ADDRESS: what CONTAINER or CONTAINER/IFNAME holds",
    );
    /// Releases what a node holds.
    pub const NODE: Self =
        Self::with_value("node", "NODE", "instead of ADDRESS: what a node holds");

    /// An option without a value.
    pub const fn flag(name: &'static str, about: &'static str) -> Self {
        Self { name, value: None, about, required: false }
    }

    /// An option with a value.
    pub const fn with_value(name: &'static str, value: &'static str, about: &'static str) -> Self {
        Self { name, value: Some(value), about, required: false }
    }

    /// The same option, for verbs that need it.
    pub(crate) const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// As the help shows it: `--name VALUE`.
    pub(crate) fn usage(&self) -> String {
        match self.value {
            None => format!("--{}", self.name),
            Some(value) => format!("--{} {value}", self.name),
        }
    }
}
