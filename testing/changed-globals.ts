import { createRequire } from 'node:module'

/** Node.js modules that corral uses for answers. */
const MODULES = 'buffer crypto dns events fs fs/promises http https net os path stream timers tls url util zlib'.split(
  ' '
)

const isObject = (value: unknown): value is object =>
  (typeof value === 'object' && value !== null) || typeof value === 'function'

/** Values that Node.js replaces at their first use. */
const LAZY = Symbol('lazy')

/** Functions of an object by their keys, and which properties have getters. */
function functionsOf(object: object): Map<PropertyKey, unknown> {
  const functions = new Map<PropertyKey, unknown>()
  for (const key of Reflect.ownKeys(object)) {
    const { value, get } = Reflect.getOwnPropertyDescriptor(object, key)!
    if (typeof value === 'function') functions.set(key, value)
    else if (get) functions.set(key, LAZY)
  }
  return functions
}

/**
 * Remembers the functions of JavaScript and Node.js that the whole process shares.
 * @returns a function for the names of those that were changed, added or removed since, such as `JSON.parse`
 */
export function watchGlobals(): () => string[] {
  const require = createRequire(import.meta.url)
  const known: { name: string; object: object; functions: Map<PropertyKey, unknown> }[] = []
  const seen = new Set<object>()
  const remember = (name: string, object: unknown) => {
    if (!isObject(object) || seen.has(object)) return
    seen.add(object)
    known.push({ name, object, functions: functionsOf(object) })
  }
  const rememberMembers = (prefix: string, object: object) => {
    for (const name of Object.getOwnPropertyNames(object)) {
      // A getter of the global object may load something.
      const value: unknown = Reflect.getOwnPropertyDescriptor(object, name)?.value
      if (!isObject(value)) continue
      remember(prefix + name, value)
      remember(`${prefix}${name}.prototype`, Reflect.getOwnPropertyDescriptor(value, 'prototype')?.value)
    }
  }
  remember('globalThis', globalThis)
  rememberMembers('', globalThis)
  for (const name of MODULES) {
    const module = require(`node:${name}`)
    remember(name, module)
    rememberMembers(`${name}.`, module)
  }
  return () =>
    known.flatMap(({ name, object, functions }) => {
      const now = functionsOf(object)
      const keys = new Set([...functions.keys(), ...now.keys()])
      const isChanged = (key: PropertyKey) => functions.get(key) !== LAZY && functions.get(key) !== now.get(key)
      const changed = [...keys].filter(isChanged)
      return changed.map(key => `${name === 'globalThis' ? '' : `${name}.`}${String(key)}`)
    })
}
