package experiment

import (
	"fmt"
	"os"

	"spillway/internal/exit"
	"spillway/internal/yaml"
)

// ReadFile reads the experiment at path as Read does.
func ReadFile(path string) (*File, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, exit.UsageError(fmt.Errorf("read experiment: %w", err))
	}
	return Read(path, source)
}

// Read reads an experiment from YAML, fills in defaults and checks everything that the text alone can tell; templates
// and programs are for Plan and Programs. name stands for the file in messages. The error is yaml.Errors.
func Read(name string, source []byte) (*File, error) {
	f := &File{}
	document, err := f.parse(name, source)
	if err != nil {
		return nil, err
	}
	f.setDefaults()
	for _, m := range f.validate() {
		document.Add(m)
	}
	if err := document.Err(); err != nil {
		return nil, err
	}
	return f, nil
}

// parse decodes the file and keeps the places of its values.
func (f *File) parse(name string, source []byte) (*yaml.Document, error) {
	document, err := yaml.Parse(name, source, yaml.Options{Loose: true, Unsigned: true, KeepEmpty: true})
	if err != nil {
		return nil, err
	}
	f.name, f.source, f.places = name, source, document.Places
	document.Decode(f)
	return document, document.Err()
}

// UnknownKeyHint implements yaml.Hinter.
func (Variant) UnknownKeyHint() string {
	return "what differs between variants is declared under factors"
}
