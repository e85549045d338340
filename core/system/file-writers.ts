import { constants, type Stats } from 'node:fs'
import { access, lstat, readFile, readlink, realpath, stat } from 'node:fs/promises'
import { dirname, join, parse, resolve, sep } from 'node:path'
import { isSystemError, whenMissing } from '../errors.ts'
import { runTool } from './child-process.ts'

/** An account that can write a file although only the user and administrators should. */
interface ForeignWriter {
  /** The file, or a folder or link on the way to it. */
  path: string
  /** As in "the account bob". */
  who: string
  /** The command that prevents it. */
  remedy: string
}

/** This process's user, and the texts of /etc/passwd and /etc/group. */
export type PosixAccounts = { platform: NodeJS.Platform; uid: number; passwd: string; group: string }

/** A file or folder, with the attributes that decide who can write it. */
type PosixNode = Pick<Stats, 'uid' | 'gid' | 'mode'> & { path: string }

/** The account that `corral service install` creates. */
const SERVICE_ACCOUNT = 'corral'
const MAX_LINKS = 40

/**
 * Finds an account other than the user, root or administrators, and the service's account that can write a file, or
 * replace it by writing a folder or link on the way to it. Undefined if there is none.
 * @throws errors of the disk; Error if Windows does not report the permissions
 */
export async function foreignWriter(path: string): Promise<ForeignWriter | undefined> {
  if (process.platform === 'win32') return await windowsWriter(path)
  const [passwd = '', group = ''] = await Promise.all(['/etc/passwd', '/etc/group'].map(textOf))
  const accounts = { platform: process.platform, uid: process.geteuid!(), passwd, group }
  for (const node of await nodesOnPath(path)) {
    const writer = posixWriter(node, accounts) ?? (await listedWriter(node))
    if (writer && !(await isReadOnly(node.path))) return writer
  }
  return undefined
}

/** Finds out who else can write this file, or replace files in this folder. */
export function posixWriter(node: PosixNode, accounts: PosixAccounts): ForeignWriter | undefined {
  const { path, uid, gid, mode } = node
  const people = records(accounts.passwd).map(([name, , id, primary]) => ({ name, id: Number(id), primary }))
  const nameOf = (id: number) => people.find(one => one.id === id)?.name ?? String(id)
  const isAllowed = (id: number) => id === 0 || id === accounts.uid || nameOf(id) === SERVICE_ACCOUNT
  const allowed = new Set(people.filter(({ id }) => isAllowed(id)).map(({ name }) => name))
  const chown = `sudo chown ${nameOf(accounts.uid)} ${path}`
  if (!isAllowed(uid)) return { path, who: `its owner, the account ${nameOf(uid)},`, remedy: chown }
  // In a sticky folder accounts can replace only their own files, and owners are checked.
  if ((mode & constants.S_IFMT) === constants.S_IFDIR && (mode & 0o1000) !== 0) return undefined
  if ((mode & 0o002) !== 0) return { path, who: 'every account of this machine', remedy: `chmod o-w ${path}` }
  if ((mode & 0o020) === 0 || gid === 0) return undefined
  const [group, , , listed = ''] = records(accounts.group).find(([, , id]) => id === String(gid)) ?? []
  const members = [
    ...listed.split(',').filter(Boolean),
    ...people.filter(one => one.primary === String(gid)).map(one => one.name)
  ]
  // macOS has no private groups, and stores accounts elsewhere. Its group "admin" may become root.
  const isPrivate =
    accounts.platform === 'darwin'
      ? gid === 80
      : group === undefined
        ? gid === accounts.uid
        : allowed.has(group) && members.every(member => allowed.has(member))
  return isPrivate ? undefined : { path, who: `the group ${group ?? gid}`, remedy: `chmod g-w ${path}` }
}

const records = (text: string) => text.split('\n').map(line => line.split(':'))

/** The name, or number, of an account other than this process's user. Undefined for the user itself. */
export async function otherOwner(path: string): Promise<string | undefined> {
  const { uid } = await stat(path)
  if (process.geteuid === undefined || uid === process.geteuid()) return undefined
  return records(await textOf('/etc/passwd')).find(([, , id]) => id === String(uid))?.[0] ?? String(uid)
}

/** Linux includes access control lists in the mode's group bits. `ls` marks files that have one. */
async function listedWriter({ path, mode }: PosixNode): Promise<ForeignWriter | undefined> {
  if (process.platform !== 'linux' || (mode & 0o1020) !== 0o020) return undefined
  const { stdout } = await runTool('/bin/ls', ['-ld', '--', path])
  if (stdout[0]?.[10] !== '+') return undefined
  return { path, who: 'an account in its access control list', remedy: `setfacl -b ${path}` }
}

/** The text of a file, which minimal containers may lack. */
const textOf = async (path: string) => (await readFile(path, 'utf8').catch(whenMissing)) ?? ''

/** The file, then every link and folder on its path, which can redirect it, unless it is a pipe or is open. */
async function nodesOnPath(path: string): Promise<PosixNode[]> {
  const file = await stat(path)
  if (!file.isFile() || /^\/(dev|proc)\//.test(path)) return [{ ...file, path }]
  const nodes: PosixNode[] = []
  let links = 0
  let target = resolve(path)
  for (let at = parse(target).root, rest = target.slice(at.length).split(sep); ; at = join(at, rest.shift()!)) {
    const { uid, gid, mode } = await lstat(at)
    const isLink = (mode & constants.S_IFMT) === constants.S_IFLNK
    // A link's permissions have no effect. Its owner, and anyone who can write to its folder, can change its target.
    nodes.unshift({ path: at, uid, gid, mode: isLink ? 0 : mode })
    if (isLink) {
      if (++links > MAX_LINKS) throw new Error(`${path} leads through too many links`)
      target = resolve(dirname(at), await readlink(at), ...rest)
      at = parse(target).root
      rest = target.slice(at.length).split(sep)
    } else if (rest.length === 0) return nodes
  }
}

/** Whether it is on a disk that is read-only here, such as a mounted ConfigMap. */
async function isReadOnly(path: string): Promise<boolean> {
  const refusal: unknown = await access(path, constants.W_OK).catch(error => error)
  return isSystemError(refusal, 'EROFS')
}

/** Bits of an access mask for writing a file, or deleting and thus replacing it. */
const FILE_RIGHTS = 0x500d0006
/** Bits for replacing the contents of a folder: deleting its entries, or deleting or taking over the folder. */
const FOLDER_RIGHTS = 0x100d0040
/** Letters for permissions (https://learn.microsoft.com/windows/win32/secauthz/ace-strings); others are all. */
const RIGHTS: Record<string, number> = {
  ...{ GR: 0, GX: 0, FR: 0, FX: 0, RC: 0, CC: 1, DC: 2, LC: 4, SW: 8, RP: 0x10, WP: 0x20, DT: 0x40, LO: 0x80 },
  ...{ CR: 0x100, FW: 0x120116, SD: 0x10000, WD: 0x40000, WO: 0x80000, GA: 0x10000000, GW: 0x40000000 }
}
/** SYSTEM, administrators, TrustedInstaller, and "the owner", who is checked separately. */
const ADMINISTRATORS =
  /^(SY|BA|LA|DA|EA|OW|S-1-5-18|S-1-5-32-544|S-1-3-4|S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464|S-1-5-21-[\d-]+-5(00|12|19))$/

/**
 * Finds the account or group (a SID, or its letters), besides the user and administrators, that can write a file or
 * replace the contents of a folder, from its security descriptor. A descriptor without a list allows everything.
 */
export function windowsForeigner(sddl: string, user: string, isFolder: boolean): string | undefined {
  const isForeign = (sid: string) => sid !== user && !ADMINISTRATORS.test(sid)
  const owner = /O:(.*?)(?=[GDS]:|$)/.exec(sddl)?.[1]
  if (owner && isForeign(owner)) return owner
  const list = /D:(.*?)(?=S:|$)/.exec(sddl)?.[1] ?? 'NO_ACCESS_CONTROL'
  if (list.includes('NO_ACCESS_CONTROL')) return 'WD'
  for (const [, type, flags, rights, sid] of list.matchAll(/\((\w+);(\w*);(\w*);[^;]*;[^;]*;([^;)]+)/g)) {
    const grants = /^(A|XA|OA)$/.test(type!) && !/IO/.test(flags!.replace(/../g, '$& '))
    const mask = /^0x/i.test(rights!)
      ? Number(rights)
      : (rights!.match(/../g) ?? []).reduce((sum, letters) => sum | (RIGHTS[letters] ?? -1), 0)
    if (grants && isForeign(sid!) && (mask & (isFolder ? FOLDER_RIGHTS : FILE_RIGHTS)) !== 0) return sid
  }
  return undefined
}

/**
 * Closes a new folder to other accounts on Windows. Modes have no effect there, and folders below C:\ or D:\ are open
 * to everyone.
 */
export async function keepPrivate(folder: string): Promise<void> {
  if (process.platform !== 'win32') return
  // The owner, the system and administrators.
  const entries = ['S-1-3-4', 'S-1-5-18', 'S-1-5-32-544'].map(sid => `*${sid}:(OI)(CI)F`)
  await runTool('icacls.exe', [folder, '/inheritance:r', '/grant:r', ...entries]).catch(() => {
    // A disk without permissions, such as a USB stick.
  })
}

async function windowsWriter(path: string): Promise<ForeignWriter | undefined> {
  const paths = [await realpath(path)]
  while (dirname(paths.at(-1)!) !== paths.at(-1)) paths.push(dirname(paths.at(-1)!))
  const question = paths.map(one => `(Get-Acl -LiteralPath '${one.replaceAll("'", "''")}').Sddl`).join('; ')
  const identity = '[Security.Principal.WindowsIdentity]::GetCurrent().User.Value'
  const script = ['-NoProfile', '-NonInteractive', '-Command', `${identity}; ${question}`]
  const [user, ...descriptors] = (await runTool('powershell.exe', script)).stdout
  if (user === undefined || descriptors.length !== paths.length) {
    throw new Error(`Windows does not say who can write ${path}`)
  }
  for (const [index, at] of paths.entries()) {
    const sid = windowsForeigner(descriptors[index]!, user, index > 0)
    if (sid !== undefined) {
      const remedy = `icacls "${at}" /inheritance:r /grant:r "%USERNAME%:F" "*S-1-5-32-544:F"`
      return { path: at, who: `the account or group ${sid}`, remedy }
    }
  }
  return undefined
}
