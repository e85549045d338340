import type { ComponentChildren, InputHTMLAttributes, Ref, TargetedEvent, TextareaHTMLAttributes } from 'preact'
import { isObject } from '../../../../core/system/json-object.ts'
import { Icon, type IconName } from './icons.tsx'

export interface ButtonProps {
  onClick?: () => unknown
  disabled?: boolean
}

interface TextButtonProps extends ButtonProps {
  text: string
  icon?: IconName
  kind?: 'main' | 'danger' | undefined
  type?: 'button' | 'submit'
  pressed?: boolean
}

/** A button with a text, after an icon if there is one. */
export function Button({ text, icon, kind, pressed, ...button }: TextButtonProps) {
  return (
    <button type="button" class={kind ? `button is-${kind}` : 'button'} aria-pressed={pressed} {...button}>
      {icon && <Icon name={icon} size={16} />}
      {text}
    </button>
  )
}

/** A row of buttons, one of which is pressed. @param names texts of the values */
export function Choices<Value extends string>(props: {
  label: string
  names: Readonly<Record<Value, string>>
  chosen: Value
  onChoose: (value: Value) => void
  children?: ComponentChildren
}) {
  return (
    <fieldset class="row plain-set" aria-label={props.label}>
      {(Object.keys(props.names) as Value[]).map(value => (
        <Button
          key={value}
          pressed={value === props.chosen}
          onClick={() => props.onChoose(value)}
          text={props.names[value]}
        />
      ))}
      {props.children}
    </fieldset>
  )
}

/** The trimmed text of a field in a submitted form. */
export type FieldText = (name: string) => string

export const fieldText =
  (fields: FormData): FieldText =>
  name =>
    String(fields.get(name) ?? '').trim()

/** A form. When it is submitted, its fields are passed on. */
export function Form(props: {
  onSubmit: (text: FieldText, fields: FormData) => unknown
  class?: string
  element?: Ref<HTMLFormElement>
  children: ComponentChildren
}) {
  return (
    <form
      class={props.class}
      ref={props.element ?? null}
      onSubmit={event => {
        event.preventDefault()
        const fields = new FormData(event.currentTarget)
        void props.onSubmit(fieldText(fields), fields)
      }}
    >
      {props.children}
    </form>
  )
}

export function Actions({ children }: { children: ComponentChildren }) {
  return <footer class="dialog-foot">{children}</footer>
}

type Labelled<Attributes> = { label: ComponentChildren } & (Attributes extends unknown
  ? Omit<Attributes, 'label'>
  : never)

export function Field({ label, ...input }: Labelled<InputHTMLAttributes<HTMLInputElement>>) {
  return (
    <label>
      {label}
      <input class="field" {...input} />
    </label>
  )
}

export function TextField({ label, ...area }: Labelled<TextareaHTMLAttributes<HTMLTextAreaElement>>) {
  return (
    <label>
      {label}
      <textarea class="field" {...area} />
    </label>
  )
}

interface SelectProps {
  label: string
  /** Values with their texts. */
  options: readonly (readonly [value: string, text: string])[]
  /** Class of the label. */
  class?: string
  name?: string
  value?: string | undefined
  onChange?: (event: TargetedEvent<HTMLSelectElement>) => void
}

export function Select({ label, options, class: own, ...select }: SelectProps) {
  return (
    <label class={own}>
      {label}
      <select class="field grow" {...select}>
        {options.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </label>
  )
}

/** Parses a JSON object. An empty text means an empty object. @throws SyntaxError */
export function parseObject(text: string): Record<string, unknown> {
  const value: unknown = text ? JSON.parse(text) : {}
  if (!isObject(value)) throw new SyntaxError('{ … }')
  return value
}

/** Splits a text at commas and spaces. */
export const wordsIn = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean)
