/** Which of two dotted versions is higher, number by number; positive when it is `a`. Missing numbers count as 0. Pure. */
export function compareVersions(a: string, b: string): number {
  const [left, right] = [numbersOf(a), numbersOf(b)]
  for (let index = 0; index < Math.max(left.length, right.length); index++) {
    const difference = (left[index] ?? 0) - (right[index] ?? 0)
    if (difference !== 0) return difference
  }
  return 0
}

function numbersOf(version: string): number[] {
  return version.split('.').map(part => Number.parseInt(part, 10) || 0)
}

/** The first number of a dotted version. */
export function majorOf(version: string): number {
  return numbersOf(version)[0]!
}
