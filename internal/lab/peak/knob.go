package peak

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A knob is a setting of the service that may move the peak, and that a command changes.
type knob struct {
	name     string
	original string   // the value of the search, in force before and afterwards
	command  string   // for sh; it sets the service to the value of the variable VALUE
	others   []string // the values to search with again
}

// othersMax is the limit of searches with other values than the original ones.
const othersMax = 8

const knobHint = "as in 'pool=8,16: ./set-pool $VALUE' (8 is in force now, and the command sets the service to the value of $VALUE)"

// parseKnobs parses what --knob was given.
func parseKnobs(texts []string) ([]knob, error) {
	var knobs []knob
	for _, text := range texts {
		k, err := parseKnob(text)
		if err != nil {
			return nil, fmt.Errorf("--knob %q: %w", text, err)
		}
		if slices.ContainsFunc(knobs, func(other knob) bool { return other.name == k.name }) {
			return nil, fmt.Errorf("--knob %q: %s is given twice; write all its values into one", text, k.name)
		}
		knobs = append(knobs, k)
	}
	if n := othersOf(knobs); n > othersMax {
		return nil, fmt.Errorf("--knob: %d values to search with; the limit is %d", n, othersMax)
	}
	return knobs, nil
}

// parseKnob parses NAME=ORIGINAL,VALUE[,…]: COMMAND.
func parseKnob(text string) (knob, error) {
	setting, command, _ := strings.Cut(text, ": ")
	name, list, hasValues := strings.Cut(setting, "=")
	k := knob{name: strings.TrimSpace(name), command: strings.TrimSpace(command)}
	values, err := splitValues(list)
	switch {
	case k.name == "" || !hasValues || k.command == "":
		return k, errors.New("write NAME=ORIGINAL,VALUE: COMMAND, " + knobHint)
	case err != nil:
		return k, err
	case len(values) < 2:
		return k, errors.New("write the value that is in force now and one to try, " + knobHint)
	}
	k.original, k.others = values[0], values[1:]
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
