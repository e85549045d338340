import type { ComponentChild } from 'preact'
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import { Icon, type IconName } from './icons.tsx'

export interface Option {
  id: string
  icon: IconName
  text: ComponentChild
  /** The keyboard shortcut for it. */
  keys?: string | undefined
  run: () => unknown
}

/**
 * A list of options for what is written in a field. The keys of the field choose.
 * @param words after a change of these, the first option is the current one
 * @returns the list, the id of its current option, and a function for pressed keys that tells whether it used one
 */
export function useOptions(
  { id, label, class: own }: { id: string; label: string; class: string },
  options: readonly Option[],
  words: string,
  choose: (option: Option) => void
) {
  const [at, setAt] = useState(0)
  const list = useRef<HTMLDivElement>(null)
  useEffect(() => setAt(0), [words])
  useLayoutEffect(() => list.current?.children[at]?.scrollIntoView({ block: 'nearest' }), [at])
  const press = (key: string): boolean => {
    const step = key === 'ArrowDown' ? 1 : key === 'ArrowUp' ? -1 : 0
    if (options.length === 0 || (step === 0 && key !== 'Enter')) return false
    if (step === 0) choose(options[at] ?? options[0]!)
    else setAt((at + step + options.length) % options.length)
    return true
  }
  const shown = (
    <div class={own} id={id} role="listbox" aria-label={label} ref={list}>
      {options.map((option, index) => (
        <div
          key={option.id}
          id={`${id}-${index}`}
          role="option"
          aria-selected={index === at}
          class={`menu-item ${index === at ? 'is-current' : ''}`}
          // The field keeps the focus.
          onMouseMove={() => setAt(index)}
          onMouseDown={event => event.preventDefault()}
          onClick={() => choose(option)}
        >
          <Icon name={option.icon} size={16} />
          <span dir="auto">{option.text}</span>
          {option.keys && <kbd>{option.keys}</kbd>}
        </div>
      ))}
    </div>
  )
  return { shown, current: options[at] && `${id}-${at}`, press }
}
