import { isObject } from '../../core/system/json-object.ts'

type Values = Record<string, unknown>

/** Whether two models may not be in memory together. */
type Conflict = (one: string, other: string) => boolean

/** How models of one group share the memory. The defaults are those of the group of all other models. */
interface Group {
  swap: boolean
  exclusive: boolean
  persistent: boolean
}

/**
 * Reads groups. A pair conflicts if loading one of the two would unload the other in at least one direction.
 * @param groups by name, with `members`
 */
export function groupConflicts(groups: Values): { conflict: Conflict; isPersistent(model: string): boolean } {
  const others: Group = { swap: true, exclusive: true, persistent: false }
  const byModel = new Map<string, Group>()
  for (const settings of Object.values(groups).filter(isObject)) {
    const { members, ...given } = settings
    const group = { ...others, ...given }
    for (const member of Array.isArray(members) ? members : []) byModel.set(String(member), group)
  }
  const find = (model: string) => byModel.get(model) ?? others
  return {
    isPersistent: model => find(model).persistent && !find(model).swap,
    conflict(one, other) {
      const [a, b] = [find(one), find(other)]
      return a === b ? a.swap : (a.exclusive || b.exclusive) && !a.persistent && !b.persistent
    }
  }
}

/** Covers all conflicts with few groups, whose models all conflict with each other. */
export function groupsFor(models: readonly string[], conflict: Conflict): string[][] {
  const covered = new Set<string>()
  const groups: string[][] = []
  for (const [at, one] of models.entries()) {
    for (const other of models.slice(at + 1)) {
      if (!conflict(one, other) || covered.has(`${one}\n${other}`)) continue
      const group = models.filter(each => each === one || each === other)
      for (const each of models) {
        if (!group.includes(each) && group.every(member => conflict(member, each))) group.push(each)
      }
      for (const a of group) for (const b of group) covered.add(`${a}\n${b}`)
      groups.push(group)
    }
  }
  return groups
}
