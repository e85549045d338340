import type { StoredVariant } from '../../core/contracts/storage.ts'
import { CorralError, isSystemError, messageOf } from '../../core/errors.ts'
import { bareName, type ModelName } from '../../core/models/model-name.ts'
import { originInWords } from '../../core/models/stored-variant.ts'

/** A model that is there came from elsewhere than what is to be stored under its name. */
export function modelExists({ model, origin }: StoredVariant): CorralError {
  const name = bareName(model)
  return new CorralError(
    'model_exists',
    `"${name}" is there already and ${originInWords(origin)}; these files are not the same. ` +
      `Choose another name, or remove it first with "corral rm ${name}".`,
    { param: 'model' }
  )
}

/** For what is to be made under the label of what was made under the bare name. */
export function labelTaken({ model, label }: StoredVariant): CorralError {
  const name = bareName(model)
  return new CorralError(
    'model_exists',
    `"${name}" is stored under the label ${label} already. Choose another tag than "${label}", or make "${name}" anew.`,
    { param: 'model' }
  )
}

/** @param present the model's variants; empty when there is no such model */
export function modelNotFound(
  name: ModelName,
  present: readonly Pick<StoredVariant, 'label' | 'isDefault'>[]
): CorralError {
  const bare = bareName(name)
  const message =
    present.length === 0
      ? `There is no model "${bare}" here. "corral list" shows what there is; ` +
        `"corral pull ${bare}${name.variant === undefined ? '' : `:${name.variant}`}" downloads it.`
      : `The model "${bare}" has no variant "${name.variant}". It has ${present
          .map(({ label, isDefault }) => (isDefault ? `${label} (the default)` : label))
          .join(', ')}.`
  return new CorralError('model_not_found', message, { param: 'model' })
}

/** Whoever removes something by another name of it may not know what else goes with it. */
export function isAlias(alias: ModelName, { model }: StoredVariant): CorralError {
  const name = bareName(model)
  return new CorralError(
    'model_not_found',
    `"${bareName(alias)}" is only another name of "${name}", given in config.yaml. Remove "${name}" itself.`,
    { param: 'model' }
  )
}

/** What a failed write into the models folder means for people; anything else as it is. */
export function writeFailure(models: string, error: unknown): unknown {
  if (isSystemError(error, 'ENOSPC', 'EDQUOT')) {
    return new CorralError(
      'insufficient_storage',
      `The disk of ${models} is full. Remove models that are not needed, or choose another disk with CORRAL_MODELS.`,
      { cause: error }
    )
  }
  if (isSystemError(error, 'EACCES', 'EPERM', 'EROFS')) {
    return new CorralError(
      'internal',
      `corral may not use ${error.path ?? models}: ${messageOf(error)}. Give its user the right to read and write there.`,
      { cause: error }
    )
  }
  if (isSystemError(error, 'ELOCKED', 'ECOMPROMISED')) {
    return new CorralError(
      'internal',
      `Another process writes into ${models} at the same time: ${messageOf(error)}. ` +
        'Only one server may use a models folder; stop the other one, then try again.',
      { cause: error }
    )
  }
  return error
}
