/// An option that a program understands, written `--name`.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Without the two dashes.
    pub(crate) name: &'static str,
    /// The name of its value in the help; `None` for an option without a value.
    pub(crate) value: Option<&'static str>,
    /// Its description in the help.
    pub(crate) about: &'static str,
    /// Whether a verb that has it fails without it.
    pub(crate) required: bool,
}

impl OptionSpec {
    /// Names the network.
    pub const CONFIG: Self =
        Self::with_value("config", "FILE", "the file of the network's configuration; - for stdin")
            .required();
    /// Prints JSON instead of a table.
    pub const JSON: Self = Self::flag("json", "print JSON, for programs");
    /// Carries out the changes that the verb only lists otherwise.
    pub const YES: Self =
        Self::flag("yes", "do it; without --yes the verb only shows what it would do");
    /// Draws the map of a pool in ASCII.
    pub const ASCII: Self = Self::flag("ascii", "draw the map without Unicode blocks");
    /// Releases the addresses of a container.
    pub const OWNER: Self = Self::with_value(
        "owner",
        "OWNER",
        "instead of ADDRESS: all of CONTAINER or CONTAINER/IFNAME",
    );
    /// Releases the addresses of a node.
    pub const NODE: Self = Self::with_value("node", "NODE", "instead of ADDRESS: all of a node");

    /// An option without a value.
    pub const fn flag(name: &'static str, about: &'static str) -> Self {
        Self { name, value: None, about, required: false }
    }

    /// An option with a value.
    pub const fn with_value(name: &'static str, value: &'static str, about: &'static str) -> Self {
        Self { name, value: Some(value), about, required: false }
    }

    /// The same option, required.
    pub(crate) const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// Its form in the help: `--name VALUE`.
    pub(crate) fn usage(&self) -> String {
        match self.value {
            None => format!("--{}", self.name),
            Some(value) => format!("--{} {value}", self.name),
        }
    }
}
