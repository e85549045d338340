import type { Model } from '../../../core/contracts/models.ts'
import type { StoredVariant } from '../../../core/contracts/storage.ts'
import { CorralError, errorMessage, isSystemError } from '../../../core/errors.ts'
import { bareName, formatModelName, type RequestedName } from '../../../core/models/model-name.ts'
import { originInWords } from '../../../core/models/stored-variant.ts'
import { diskRefusal } from '../../../core/system/disk-space.ts'

const modelError = (code: 'model_exists' | 'model_not_found', message: string) =>
  new CorralError(code, message, { param: 'model' })

export function modelExists({ model, origin }: StoredVariant): CorralError {
  const name = bareName(model)
  return modelError(
    'model_exists',
    `"${name}" already exists and ${originInWords(origin)}; these files are not the same. ` +
      `Choose another name, or remove it first with "corral rm ${name}".`
  )
}

/** For a tag whose label belongs to the model made under the bare name. */
export function labelTaken({ model, label }: StoredVariant): CorralError {
  const name = bareName(model)
  return modelError(
    'model_exists',
    `"${name}" is already stored under the label ${label}. Choose another tag than "${label}", or make "${name}" again.`
  )
}

const MAX_NAMED = 3

interface NotHere {
  /** Names that the caller may have meant. */
  similar?: readonly string[]
  /** The names of all models, if none is similar. */
  here?: readonly string[]
  /** Whether a pull of this exact name would work. */
  mayBePulled?: boolean
}

/** @param present the model's variants; empty if there is no such model */
export function modelNotFound(
  name: RequestedName,
  present: readonly Pick<Model, 'label' | 'isDefault'>[],
  { similar = [], here = [], mayBePulled = true }: NotHere = {}
): CorralError {
  const bare = bareName(name)
  if (present.length > 0) {
    const labels = present.map(({ label, isDefault }) => (isDefault ? `${label} (the default)` : label)).join(', ')
    return modelError('model_not_found', `The model "${bare}" has no variant "${name.variant}". It has ${labels}.`)
  }
  const full = formatModelName(name)
  const next = mayBePulled
    ? `"corral pull ${full}" downloads it.`
    : `"corral search ${name.name}" searches the hubs for it.`
  return modelError(
    'model_not_found',
    `There is no model "${bare}" here. ${suggestions(similar, here)}"corral list" shows the installed models; ${next}`
  )
}

function suggestions(similar: readonly string[], here: readonly string[]): string {
  const quoted = (names: readonly string[]) => names.slice(0, MAX_NAMED).map(name => `"${name}"`)
  if (similar.length > 0) return `Did you mean ${orList(quoted(similar))}? `
  if (here.length === 0) return ''
  const more = here.length > MAX_NAMED ? ` and ${here.length - MAX_NAMED} more` : ''
  return `Here ${here.length === 1 ? 'is' : 'are'} ${quoted(here).join(', ')}${more}. `
}

const orList = (names: readonly string[]) =>
  names.length < 2 ? names.join('') : `${names.slice(0, -1).join(', ')} or ${names.at(-1)}`

export function aliasOfMissingModel(alias: RequestedName, target: RequestedName): CorralError {
  const full = formatModelName(target)
  return modelError(
    'model_not_found',
    `"${bareName(alias)}" is an alias of "${full}" in config.yaml, but that model is not here. ` +
      `"corral pull ${full}" downloads it.`
  )
}

export function ambiguousName(name: RequestedName, models: readonly Model[]): CorralError {
  const full = models.map(({ model: { owner, name: bare } }) => formatModelName({ ...name, owner, name: bare })).sort()
  const shown = full.length > 10 ? [...full.slice(0, 10), `${full.length - 10} more`] : full
  const message = `"${formatModelName(name)}" is ambiguous: use ${orList(shown)}.`
  return new CorralError('model_not_found', message, { param: 'model', details: { candidates: full } })
}

/** Explains a failed write into the models folder. Other errors are returned unchanged. */
export function writeFailure(models: string, error: unknown): unknown {
  if (isSystemError(error, 'ELOCKED', 'ECOMPROMISED')) {
    const what = `Another process is writing into the models folder: ${errorMessage(error)}.`
    const advice = 'Only one server may use a models folder. Stop the other one, then try again.'
    return new CorralError('internal', `${what} ${advice}`, { cause: error })
  }
  // The error may be about the imported files instead.
  if (isSystemError(error, 'EACCES', 'EPERM') && !error.path?.startsWith(models)) return error
  return diskRefusal(error, 'The models were not changed', 'models') ?? error
}
