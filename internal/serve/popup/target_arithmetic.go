package popup

import (
	"math"
	"time"
)

// calculate returns x op y for integers, reals, and the difference of two timestamps. It
// returns nil, a missing value, if x or y is missing, the divisor is zero, the result
// overflows, or it is not a number.
func calculate(op string, x, y any) any {
	switch x := x.(type) {
	case int:
		switch y := y.(type) {
		case int:
			return calculateIntegers(op, x, y)
		case float64:
			return calculateReals(op, float64(x), y)
		}
	case float64:
		switch y := y.(type) {
		case int:
			return calculateReals(op, x, float64(y))
		case float64:
			return calculateReals(op, x, y)
		}
	case time.Time:
		if y, ok := y.(time.Time); ok {
			return elapsed(y, x)
		}
	}
	return nil
}

// elapsed returns to - from; nil if a duration cannot hold it.
func elapsed(from, to time.Time) any {
	d := to.Sub(from)
	if d == math.MinInt64 || d == math.MaxInt64 {
		return nil
	}
	return d
}

func calculateIntegers(op string, x, y int) any {
	switch op {
	case "+":
		if sum := x + y; (sum < x) == (y < 0) {
			return sum
		}
	case "-":
		if difference := x - y; (difference > x) == (y < 0) {
			return difference
		}
	case "*":
		product := x * y
		if x == 0 || product/x == y && (x != -1 || y != math.MinInt) {
			return product
		}
	case "%":
		if y != 0 {
			return x % y
		}
	default:
		return calculateReals(op, float64(x), float64(y))
	}
	return nil
}

func calculateReals(op string, x, y float64) any {
	var result float64
	switch op {
	case "+":
		result = x + y
	case "-":
		result = x - y
	case "*":
		result = x * y
	case "/":
		result = x / y
	case "**":
		result = math.Pow(x, y)
	}
	if math.IsNaN(result) || math.IsInf(result, 0) {
		return nil
	}
	return result
}

// negate returns -x; nil if x is missing or -x overflows.
func negate(x any) any {
	switch x := x.(type) {
	case int:
		if x != math.MinInt {
			return -x
		}
	case float64:
		return -x
	}
	return nil
}
