package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"spillway/internal/lab/sheet"
)

// JUnit XML as GitHub, GitLab and Jenkins read it (the schema of Apache Ant, github.com/windyroad/JUnit-Schema): a suite
// per run, and a case per step for its validity and for each criterion of the SLO.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name      string      `xml:"name,attr"`
		Tests     int         `xml:"tests,attr"`
		Failures  int         `xml:"failures,attr"`
		Errors    int         `xml:"errors,attr"`
		Skipped   int         `xml:"skipped,attr"`
		Time      string      `xml:"time,attr"`
		Timestamp string      `xml:"timestamp,attr"`
		Hostname  string      `xml:"hostname,attr"`
		Cases     []junitCase `xml:"testcase"`
		Out       string      `xml:"system-out,omitempty"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitProblem `xml:"failure"` // a criterion was missed
		Error   *junitProblem `xml:"error"`   // the step is not a valid measurement
		Skipped *junitProblem `xml:"skipped"` // a criterion of a step that is not valid
	}
	junitProblem struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

func (s *junitSuite) add(c junitCase) {
	c.Class, c.Name = sheet.Printable(c.Class), sheet.Printable(c.Name)
	s.Cases = append(s.Cases, c)
	s.Tests++
	switch {
	case c.Failure != nil:
		s.Failures++
	case c.Error != nil:
		s.Errors++
	case c.Skipped != nil:
		s.Skipped++
	}
}

func newProblem(message string, lines ...string) *junitProblem {
	return &junitProblem{sheet.Printable(message), sheet.Printable(strings.Join(lines, "; "))}
}

func writeJUnit(w io.Writer, runs []*run) error {
	var all junitSuites
	for _, r := range runs {
		suite := r.suite()
		for _, s := range r.steps {
			s.cases(&suite)
		}
		if len(r.steps) == 0 || r.CutOff != "" {
			suite.add(junitCase{Class: r.label, Name: "the result is complete", Error: newProblem(r.headline().Text, r.headline().Caveat)})
		} else if reason := r.endedEarly(); reason != "" {
			suite.add(junitCase{Class: r.label, Name: "the run reached its end", Failure: newProblem("it " + reason)})
		}
		all.Suites = append(all.Suites, suite)
	}
	return all.write(w)
}

func (r *run) suite() junitSuite {
	h := r.headline()
	return junitSuite{
		Name: sheet.Printable(r.label), Time: decimal(r.End.Elapsed), Timestamp: r.Header.StartedAt.UTC().Format("2006-01-02T15:04:05"),
		Hostname: sheet.Printable(r.Header.Machine.Host), Out: sheet.Printable(strings.TrimSpace(h.Text + " " + h.Caveat)),
	}
}

// cases adds a case for the validity of a step and one for each criterion.
func (s *step) cases(suite *junitSuite) {
	elapsed := decimal(s.Total.Elapsed)
	valid := junitCase{Class: s.Load(), Name: "is a valid measurement", Time: elapsed}
	if !s.valid() {
		valid.Error = newProblem(s.validity(), s.Total.Sentences()...)
	}
	suite.add(valid)
	for _, c := range s.Total.SLO {
		one := junitCase{Class: s.Load(), Name: criterionText(c), Time: elapsed}
		switch {
		case !s.valid():
			one.Skipped = newProblem(s.validity() + ": " + c.Observation())
		case !c.Met:
			one.Failure = newProblem(c.Observation(), s.remarks()...)
		}
		suite.add(one)
	}
}

func (s *junitSuites) write(w io.Writer) error {
	text, err := xml.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return sheet.Emit(w, bytes.NewBufferString(xml.Header+string(text)+"\n"))
}

// writeJUnit writes a case for each change that has a limit.
func (c *comparison) writeJUnit(w io.Writer) error {
	suite := c.now.suite()
	suite.Name, suite.Out = sheet.Printable(c.now.label+" against "+c.base.label), sheet.Printable(c.headline())
	for _, one := range c.changes {
		if one.text == "" {
			continue
		}
		test := junitCase{Class: one.step, Name: one.text, Time: "0"}
		detail := fmt.Sprintf("%s: %s against %s", one.sizeText(), one.now.show(one.figure), one.base.show(one.figure))
		switch {
		case len(c.invalid) > 0:
			test.Error = newProblem("not judged", c.invalid...)
		case one.verdict == aboveLimit:
			test.Failure = newProblem(detail)
		case one.verdict == notComparable:
			test.Error = newProblem(one.why())
		}
		suite.add(test)
	}
	all := junitSuites{Suites: []junitSuite{suite}}
	return all.write(w)
}
