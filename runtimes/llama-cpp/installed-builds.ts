import type { Build, InstalledBuild, RuntimeDescriptor } from '../../core/contracts/builds.ts'
import { CorralError } from '../../core/errors.ts'
import { isMeant } from './build-place.ts'
import type { BuildRecord } from './build-records.ts'
import type { Selection } from './selection.ts'
import { nightlyNumber, releaseTag } from './sources/release.ts'

/** What an installed build is for corral now. Pure. */
export function stateOf(
  { build, failure }: Pick<BuildRecord, 'build' | 'failure'>,
  { selected, previous }: Selection,
  current: Build | undefined
): InstalledBuild['state'] {
  if (build.id === current?.id) return 'in use'
  if (failure) return 'failed'
  if (build.id === selected) return 'selected'
  return build.id === previous ? 'previous' : 'installed'
}

/** The setting `runtime` in the sections of models, by their names. */
export type ModelRuntimes = Readonly<Record<string, { runtime?: string }>>

/** The model whose section means this build, and no other one that works. Pure. */
export function modelThatNeeds(id: string, records: readonly BuildRecord[], models: ModelRuntimes): string | undefined {
  return Object.keys(models).find(model => {
    const choice = models[model]!.runtime
    if (choice === undefined) return false
    const named = records.filter(({ build }) => build.id.toLowerCase() === choice.toLowerCase())
    const works = records.filter(({ build, failure }) => !failure && isMeant(choice, build))
    const meant = named.length > 0 ? named : works
    return meant.length === 1 && meant[0]!.build.id === id
  })
}

function installedText(records: readonly BuildRecord[]): string {
  const ids = records.map(({ build }) => build.id)
  return ids.length > 0 ? `Installed are: ${ids.join(', ')}.` : 'None is installed.'
}

/** The record of an id. Pure. @throws CorralError `runtime_not_found`, saying what there is */
export function recordOf(records: readonly BuildRecord[], id: string): BuildRecord {
  const record = records.find(({ build }) => build.id.toLowerCase() === id.toLowerCase())
  if (record) return record
  throw new CorralError('runtime_not_found', `No llama.cpp build "${id}" is installed. ${installedText(records)}`, {
    param: 'runtime'
  })
}

const numberOf = ({ build }: BuildRecord) => nightlyNumber(releaseTag(build.id)) ?? -1

/**
 * The record that a name means: an id, else the newest build of that kind, those that failed last. Pure.
 * @throws CorralError `runtime_not_found`, saying what there is
 */
export function findInstalled(
  records: readonly BuildRecord[],
  choice: string,
  kinds: readonly RuntimeDescriptor[]
): BuildRecord {
  const byId = records.find(({ build }) => build.id.toLowerCase() === choice.toLowerCase())
  if (byId) return byId
  const [newest] = records
    .filter(({ build }) => isMeant(choice, build))
    .sort(
      (a, b) =>
        Number(a.failure !== undefined) - Number(b.failure !== undefined) ||
        numberOf(b) - numberOf(a) ||
        b.provenAt.localeCompare(a.provenAt)
    )
  if (newest) return newest
  if (kinds.some(kind => isMeant(choice, { runtime: kind.name, kind: kind.kind }))) {
    throw new CorralError(
      'runtime_not_found',
      `No llama.cpp build of the kind "${choice}" is installed. Get one with: corral runtime install ${choice}`,
      { param: 'runtime' }
    )
  }
  throw new CorralError(
    'runtime_not_found',
    `No llama.cpp build "${choice}" is installed, and no kind is named so. ${installedText(records)} ` +
      `Kinds are: ${kinds.map(({ name }) => name).join(', ')}.`,
    { param: 'runtime' }
  )
}
