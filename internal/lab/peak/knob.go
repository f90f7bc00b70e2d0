package peak

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"spillway/internal/lab/load"
)

// A knob is a setting that may move the peak: one of the load, or one of the service, which a command changes.
type knob struct {
	name     string
	original string // the value of the search, in force before and afterwards
	command  string // for sh; it sets the service to the value of the variable VALUE. "": a knob of the load
	turns    []turn
}

// A turn is a value of a knob other than the original.
type turn struct {
	value  string
	change func(*load.Options) // of a knob of the load
}

// Names of the knobs of the load.
const (
	knobKeepAlive   = "keep-alive"
	knobConnections = "connections"
	knobSource      = "source"
)

// turnsMax is the limit of searches with other values than the original ones.
const turnsMax = 8

const knobHint = "as in 'pool=8,16: ./set-pool $VALUE' (8 is in force now, and the command sets the service to the value of $VALUE), " +
	"keep-alive, connections=64,256 or source=127.0.0.2,127.0.0.3"

// parseKnobs parses what --knob was given for a load with these options.
func parseKnobs(texts []string, o *load.Options) ([]knob, error) {
	var knobs []knob
	turns := 0
	for _, text := range texts {
		k, err := parseKnob(text, o)
		if err != nil {
			return nil, fmt.Errorf("--knob %q: %w", text, err)
		}
		if slices.ContainsFunc(knobs, func(other knob) bool { return other.name == k.name }) {
			return nil, fmt.Errorf("--knob %q: %s is given twice; write all its values into one", text, k.name)
		}
		knobs = append(knobs, k)
		turns += len(k.turns)
	}
	if turns > turnsMax {
		return nil, fmt.Errorf("--knob: %d values to search with; the limit is %d", turns, turnsMax)
	}
	return knobs, nil
}

// parseKnob parses NAME=ORIGINAL,VALUE[,…]: COMMAND, or a knob of the load.
func parseKnob(text string, o *load.Options) (knob, error) {
	setting, command, hasCommand := strings.Cut(text, ": ")
	name, list, hasValues := strings.Cut(setting, "=")
	name = strings.TrimSpace(name)
	if !hasCommand {
		switch {
		case name == knobKeepAlive && !hasValues:
			return keepAlive(o), nil
		case name == knobConnections && hasValues:
			return connections(list, o)
		case name == knobSource && hasValues:
			return source(list, o), nil
		}
	}
	k := knob{name: name, command: strings.TrimSpace(command)}
	values, err := splitValues(list)
	switch {
	case name == "" || !hasValues || !hasCommand || k.command == "":
		return k, errors.New("write NAME=ORIGINAL,VALUE: COMMAND, " + knobHint)
	case err != nil:
		return k, err
	case len(values) < 2:
		return k, errors.New("write the value that is in force now and one to try, " + knobHint)
	}
	k.original = values[0]
	for _, value := range values[1:] {
		k.turns = append(k.turns, turn{value: value})
	}
	return k, nil
}

// splitValues splits a list of different values.
func splitValues(list string) ([]string, error) {
	var values []string
	for value := range strings.SplitSeq(list, ",") {
		value = strings.TrimSpace(value)
		switch {
		case value == "":
			return nil, errors.New("a value is empty; write values between commas, " + knobHint)
		case slices.Contains(values, value):
			return nil, fmt.Errorf("the value %s is there twice; remove one", value)
		}
		values = append(values, value)
	}
	return values, nil
}

// Values of keep-alive.
const (
	kept  = "kept"  // as many requests per connection as come
	short = "short" // a connection per request
)

// keepAlive tries short connections if they are kept, and kept ones otherwise.
func keepAlive(o *load.Options) knob {
	k := knob{name: knobKeepAlive, original: kept}
	other, requests := short, 1
	if o.PerConnection > 0 {
		k.original, other, requests = short, kept, 0
	}
	if o.PerConnection > 1 {
		k.original = fmt.Sprintf("%d requests", o.PerConnection)
	}
	k.turns = []turn{{value: other, change: func(o *load.Options) { o.PerConnection = requests }}}
	return k
}

// connections tries other limits of the load's connections.
func connections(list string, o *load.Options) (knob, error) {
	k := knob{name: knobConnections, original: cmp.Or(o.Connections, "default")}
	values, err := splitValues(list)
	if err != nil {
		return k, err
	}
	for _, value := range values {
		if n, err := strconv.Atoi(value); err != nil || n < 1 || n > load.ConnectionsMax {
			return k, fmt.Errorf("%q is not a number from 1 to %d", value, load.ConnectionsMax)
		}
		if value != k.original {
			k.turns = append(k.turns, turn{value: value, change: func(o *load.Options) { o.Connections = value }})
		}
	}
	if len(k.turns) == 0 {
		return k, fmt.Errorf("the search itself has %s connections; name another number", k.original)
	}
	return k, nil
}

// source tries other local addresses, all of them at once.
func source(list string, o *load.Options) knob {
	k := knob{name: knobSource, original: cmp.Or(strings.Join(o.Source, ","), "default")}
	addresses := strings.Split(list, ",")
	k.turns = []turn{{value: list, change: func(o *load.Options) { o.Source = addresses }}}
	return k
}
