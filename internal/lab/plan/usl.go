package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"

	"spillway/internal/lab/result"
)

// Limits of a fit of the Universal Scalability Law.
const (
	// ConcurrenciesMin is how many different concurrencies a fit needs.
	ConcurrenciesMin = 6
	// ExtrapolationMax is how far beyond the largest measured concurrency a fit may be read, as a factor.
	ExtrapolationMax = 2

	uslParameters = 3
	uslReplicas   = 1000
	uslLevel      = 0.95 // of the band
)

// closedProbe begins the name of the closed-loop probes of a search for a peak.
const closedProbe = "closed"

// A Point is the throughput at one concurrency of a closed loop.
type Point struct {
	Connections float64 `json:"connections"`
	RateHz      float64 `json:"rate_hz"`
}

// A USL is the Universal Scalability Law, fitted to a sweep of a closed loop: X(N) = Lambda N / (1 + Sigma (N-1) + Kappa N (N-1)).
// N. J. Gunther, "Guerrilla Capacity Planning", Springer, 2007, chapters 4 to 6. It explains a sweep; a peak rests on measured steps.
type USL struct {
	Lambda Estimate `json:"lambda_hz"` // rate of one connection alone
	Sigma  Estimate `json:"sigma"`     // contention: the part of the work that is serial
	Kappa  Estimate `json:"kappa"`     // crosstalk: the cost of each pair of connections
	Knee   float64  `json:"knee_connections"`
	Points []Point  `json:"points"` // that were fitted, by connections

	fit      curve
	replicas []curve
}

// Sweep returns the points of a run that a fit may use: VALID steps of a closed loop without think times, of which no more than
// result.ErrorShareMax of the requests failed. The short closed-loop probes of a search for a peak, by whose names it is
// recognized, are none.
func Sweep(run *result.Run) []Point {
	var points []Point
	for i := range run.Steps {
		s := &run.Steps[i]
		probe, _, _ := strings.Cut(s.Name, " ")
		usable := probe != closedProbe && s.Loop == result.LoopClosed && !s.ThinkTimes && s.Total.Validity == result.Valid && !s.Total.Overloaded
		if usable && s.Connections > 0 && s.Total.Rate() > 0 && !math.IsInf(s.Total.Rate(), 0) && s.Total.ErrorShare() <= result.ErrorShareMax {
			points = append(points, Point{float64(s.Connections), s.Total.Rate()})
		}
	}
	return points
}

// FitUSL fits the law by least squares of relative errors, with Sigma and Kappa at least 0. Its bands are of 95 %, by a parametric
// bootstrap with random numbers from seed. The error says what is missing: enough concurrencies, or one beyond the knee, which is
// where X squared / N is highest (L. Kleinrock, "Power and deterministic rules of thumb", ICC 1979).
func FitUSL(points []Point, seed uint64) (*USL, error) {
	points = slices.Clone(points)
	slices.SortStableFunc(points, func(a, b Point) int { return cmp.Compare(a.Connections, b.Connections) })
	different := 0
	for i, p := range points {
		if !(p.Connections >= 1) || !(p.RateHz > 0) || math.IsInf(p.Connections*p.RateHz, 0) {
			return nil, fmt.Errorf("fit the scalability law: %g/s with %g connections is not a measurement", p.RateHz, p.Connections)
		}
		if i == 0 || p.Connections > points[i-1].Connections {
			different++
		}
	}
	if different < ConcurrenciesMin {
		return nil, fmt.Errorf("fit the scalability law: %d VALID concurrencies of a closed loop; it needs %d, as in load -c 1,2,4,8,16,32,64",
			different, ConcurrenciesMin)
	}
	knee := kneeOf(points)
	if last := points[len(points)-1].Connections; knee >= last {
		return nil, fmt.Errorf("fit the scalability law: the knee is not below the highest concurrency, %g: add a step of %g connections", last,
			2*last)
	}
	fit, determined := fitCurve(points)
	if !determined {
		return nil, errors.New("fit the scalability law: the rates with few connections are too low for it; repeat these steps")
	}
	u := &USL{Knee: knee, Points: points, fit: fit, replicas: fit.resample(points, rand.New(rand.NewPCG(seed, 0x75736c)))}
	if len(u.replicas) < uslReplicas/2 {
		return nil, errors.New("fit the scalability law: the rates scatter too much around it; repeat the steps")
	}
	u.Lambda = u.estimate(func(c curve) float64 { return 1 / c.a })
	u.Sigma = u.estimate(func(c curve) float64 { return c.b / c.a })
	u.Kappa = u.estimate(func(c curve) float64 { return c.c / c.a })
	return u, nil
}

// kneeOf is the measured concurrency with the highest X squared / N.
func kneeOf(points []Point) float64 {
	power := func(p Point) float64 { return p.RateHz * p.RateHz / p.Connections }
	return slices.MaxFunc(points, func(a, b Point) int { return cmp.Compare(power(a), power(b)) }).Connections
}

// At is the rate with so many connections and its band. It is an error outside of 1 to ExtrapolationMax times the largest
// measured number.
func (u *USL) At(connections float64) (Estimate, error) {
	measured := u.Points[len(u.Points)-1].Connections
	if !(connections >= 1 && connections <= ExtrapolationMax*measured) {
		return Estimate{}, fmt.Errorf("%g connections: the sweep measured up to %g, and the law is not read outside of 1 to %g", connections,
			measured, ExtrapolationMax*measured)
	}
	return u.estimate(func(c curve) float64 { return c.at(connections) }), nil
}

// Best is the number of connections with the highest rate, and false if it is beyond what At allows.
func (u *USL) Best() (connections float64, ok bool) {
	best := math.Floor(math.Sqrt((u.fit.a - u.fit.b) / u.fit.c)) // sqrt((1-Sigma)/Kappa); NaN or infinite without a maximum
	if !(best <= ExtrapolationMax*u.Points[len(u.Points)-1].Connections) {
		return 0, false
	}
	return max(1, best), true
}

// estimate is a quantity of the fit and its percentile interval.
func (u *USL) estimate(of func(curve) float64) Estimate {
	values := make([]float64, len(u.replicas))
	for i, c := range u.replicas {
		values[i] = of(c)
	}
	sort.Float64s(values)
	tail := int(math.Floor((1 - uslLevel) / 2 * float64(len(values))))
	v := of(u.fit)
	return Estimate{Value: v, Low: min(v, values[tail]), High: max(v, values[len(values)-1-tail])}
}

// A curve is the law in its linear form: N/X = a + b (N-1) + c N (N-1), with a > 0 and b, c >= 0.
type curve struct{ a, b, c float64 }

func (c curve) at(n float64) float64 { return n / (c.a + c.b*(n-1) + c.c*n*(n-1)) }

// fitCurve minimizes the sum of squared relative errors of N/X. The problem is convex, so that its solution is the best of the
// solutions without constraints in which some coefficients are 0 and the others are not negative. It is a law only if a is above
// 0: determined is false if the rate with one connection would be infinite, and best is then the best of the laws with b or c at 0.
func fitCurve(points []Point) (best curve, determined bool) {
	rows := make([][uslParameters]float64, len(points))
	for i, p := range points {
		y := p.Connections / p.RateHz
		rows[i] = [uslParameters]float64{1 / y, (p.Connections - 1) / y, p.Connections * (p.Connections - 1) / y}
	}
	least, improper := math.Inf(1), math.Inf(1)
	for _, free := range [][]int{{0}, {0, 1}, {0, 2}, {0, 1, 2}, {1}, {2}, {1, 2}} {
		x, solved := leastSquares(rows, free)
		if !solved || x[0] < 0 || x[1] < 0 || x[2] < 0 {
			continue
		}
		squares := 0.0
		for _, row := range rows {
			e := row[0]*x[0] + row[1]*x[1] + row[2]*x[2] - 1
			squares += e * e
		}
		switch {
		case x[0] == 0:
			improper = min(improper, squares)
		case squares < least:
			least, best = squares, curve{x[0], x[1], x[2]}
		}
	}
	return best, least <= improper && best.a > 0
}

// leastSquares solves rows x = 1 for the free columns by normal equations, whose columns are scaled to unit length. The other
// coefficients are 0. solved is false if the columns are dependent.
func leastSquares(rows [][uslParameters]float64, free []int) (x [uslParameters]float64, solved bool) {
	n := len(free)
	var scale [uslParameters]float64
	for _, k := range free {
		for _, row := range rows {
			scale[k] += row[k] * row[k]
		}
		if scale[k] = math.Sqrt(scale[k]); scale[k] == 0 {
			return x, false
		}
	}
	var m [uslParameters][uslParameters + 1]float64 // the normal equations with their right side
	for i, p := range free {
		for _, row := range rows {
			for j, q := range free {
				m[i][j] += row[p] * row[q] / (scale[p] * scale[q])
			}
			m[i][n] += row[p] / scale[p]
		}
	}
	for i := range n { // Gauss and Jordan; the matrix is positive definite and needs no pivots
		if m[i][i] < 1e-12 {
			return x, false
		}
		for r := range n {
			if r == i {
				continue
			}
			factor := m[r][i] / m[i][i]
			for c := i; c <= n; c++ {
				m[r][c] -= factor * m[i][c]
			}
		}
	}
	for i, k := range free {
		x[k] = m[i][n] / m[i][i] / scale[k]
	}
	return x, true
}

// resample fits the law to made-up sweeps: those of the fit, with normal relative errors of the size of its residuals. This size
// is itself known from few points only, so that each sweep draws it from its chi-squared distribution.
func (c curve) resample(points []Point, rnd *rand.Rand) []curve {
	squares := 0.0
	for _, p := range points {
		e := c.at(p.Connections)/p.RateHz - 1
		squares += e * e
	}
	freedom := len(points) - uslParameters
	replicas := make([]curve, 0, uslReplicas)
	made := make([]Point, len(points))
	for range uslReplicas {
		chi := 0.0
		for range freedom {
			z := rnd.NormFloat64()
			chi += z * z
		}
		sigma := math.Sqrt(squares / chi)
		for i, p := range points {
			made[i] = Point{p.Connections, c.at(p.Connections) * math.Exp(sigma*rnd.NormFloat64())}
		}
		if replica, _ := fitCurve(made); replica.a > 0 {
			replicas = append(replicas, replica)
		}
	}
	return replicas
}
