/**
 * A new object with the properties of both; the second's win. Use it for objects of every request: if an object literal
 * begins with a spread and continues, V8 creates hidden classes for each object, which keep much of the request in
 * memory until the next full garbage collection.
 */
export function merged<First extends object, Second extends object>(first: First, second: Second): First & Second {
  return Object.assign({}, first, second)
}
