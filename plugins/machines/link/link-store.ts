import { Type } from 'typebox'
import { CorralError } from '../../../core/errors.ts'
import { readJsonFile, writeJsonFile } from '../../../core/system/json-file.ts'
import { createIdentity, type Identity, machineId } from './link-certificate.ts'
import { type Introduction, linkFile, type Machine, MachineSchema } from './link-records.ts'

const FileSchema = Type.Object({
  version: Type.Literal(1),
  certificate: Type.String(),
  key: Type.String(),
  machines: Type.Array(MachineSchema)
})

const MAX_MACHINES = 64

export type LinkStore = Awaited<ReturnType<typeof openLinkStore>>

/** Opens the list of linked machines, with this machine's certificate. @throws Error naming an invalid file */
export async function openLinkStore(home: string) {
  const path = linkFile(home)
  const read = await readJsonFile(path, FileSchema)
  if (read?.fault !== undefined) {
    throw new Error(
      `The list of linked machines, ${path}, cannot be used: ${read.fault}. Delete it, and link them again.`
    )
  }
  const { machines: stored = [], ...known } = read?.value ?? {}
  const { certificate, key }: Identity = 'certificate' in known ? known : createIdentity()
  const identity = { certificate, key }
  let machines: readonly Machine[] = stored
  let writing: Promise<void> = Promise.resolve()

  /** Resolves when the list is on disk. Until then, and if that fails, the previous one applies. */
  async function change(next: (machines: readonly Machine[]) => readonly Machine[]): Promise<void> {
    const step = writing.then(async () => {
      const changed = next(machines)
      await writeJsonFile(path, { version: 1, ...identity, machines: changed }, { mode: 0o600, pretty: true })
      machines = changed
    })
    writing = step.catch(() => {
      // The caller is told. Later changes are independent.
    })
    await step
  }

  const find = (name: string) => machines.find(machine => machine.name.toLowerCase() === name.toLowerCase())

  return {
    identity,
    id: machineId(certificate),
    all: () => machines,
    withId: (id: string) => machines.find(machine => machine.id === id),
    /** @throws CorralError `machine_not_found` */
    require(name: string): Machine {
      const machine = find(name)
      if (machine) return machine
      const names = machines.map(({ name }) => name).join(', ')
      const message = `No machine named "${name}" is linked. ${names === '' ? 'There are none. Link one with: corral link' : `Linked are: ${names}.`}`
      throw new CorralError('machine_not_found', message, { param: 'name' })
    },
    /** Adds a machine, or replaces what was known about it. Keeps its permissions and, if possible, its name. */
    async add({ machine: name, ...introduced }: Introduction): Promise<Machine> {
      const id = machineId(introduced.certificate)
      const known = machines.find(machine => machine.id === id)
      if (!known && machines.length >= MAX_MACHINES) {
        const message = `${MAX_MACHINES} machines are linked, which is the maximum. Remove one first: corral link remove <name>`
        throw new CorralError('invalid_request', message)
      }
      const names = [name, ...Array.from({ length: MAX_MACHINES }, (_, index) => `${name}-${index + 2}`)]
      const free = known?.name ?? names.find(candidate => !find(candidate))!
      const machine: Machine = {
        ...{ may: 'ask', ...known, ...introduced, id, name: free },
        linked_at: new Date().toISOString()
      }
      await change(all => [...all.filter(other => other.id !== id), machine])
      return machine
    },
    async update(id: string, changes: Partial<Machine>): Promise<void> {
      await change(all => all.map(machine => (machine.id === id ? { ...machine, ...changes } : machine)))
    },
    async remove(id: string): Promise<void> {
      await change(all => all.filter(machine => machine.id !== id))
    }
  }
}
