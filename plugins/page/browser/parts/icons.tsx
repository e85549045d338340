/** Icon paths with the same stroke, in a square of 24. */
const PATHS = {
  plus: 'M12 5v14M5 12h14',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M7 7h10v10H7z',
  copy: 'M9 9h10v10H9zM5 15V5h10',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  edit: 'M4 20l1-4L16 5l3 3L8 19zM14 7l3 3',
  again: 'M4.5 12a7.5 7.5 0 1 0 2.2-5.3L4.5 9M4.5 4.5V9H9',
  more: 'M6 12h.01M12 12h.01M18 12h.01',
  left: 'M14.5 6l-6 6 6 6',
  right: 'M9.5 6l6 6-6 6',
  down: 'M6 9.5l6 6 6-6',
  close: 'M6 6l12 12M18 6L6 18',
  search: 'M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM16 16l4 4',
  menu: 'M4 7h16M4 12h16M4 17h16',
  chat: 'M5 5h14v11H10l-5 4z',
  models: 'M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9',
  server: 'M4 5h16v6H4zM4 13h16v6H4zM8 8h.01M8 16h.01',
  playground: 'M8 7l-5 5 5 5M16 7l5 5-5 5M13.5 5l-3 14',
  settings: 'M4 8h9M17 8h3M4 16h3M11 16h9M15 6v4M9 14v4',
  pin: 'M9 4h6l-1 6 3 3H7l3-3zM12 13v7',
  trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
  clip: 'M18 11l-6.5 6.5a3.5 3.5 0 0 1-5-5L13 6a2.3 2.3 0 0 1 3.3 3.3L10 15.600',
  play: 'M8 5l11 7-11 7z',
  pause: 'M8 5v14M16 5v14',
  download: 'M12 4v11M7 10.5l5 5 5-5M5 20h14',
  eject: 'M5 15l7-9 7 9zM5 19h14',
  sound: 'M4 10v4h3l5 4V6l-5 4zM15.5 9.5a4 4 0 0 1 0 5M18 7a7.5 7.5 0 0 1 0 10',
  columns: 'M4 5h16v14H4zM12 5v14',
  warning: 'M12 4l9 16H3zM12 10v4M12 17h.01',
  theme: 'M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16'
} as const

export type IconName = keyof typeof PATHS

/** A decorative icon. The text or label beside it has the meaning. */
export function Icon({ name, size = 18 }: { name: IconName; size?: number }) {
  return (
    <svg
      class="icon"
      width={size}
      height={size}
      viewBox="0 0 24 24"
      fill="none"
      stroke="currentColor"
      stroke-width={name === 'more' ? 2.6 : 1.7}
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      <path d={PATHS[name]} />
    </svg>
  )
}
